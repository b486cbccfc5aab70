"""Small, likely kinds of damage to bytes."""

from __future__ import annotations

import random
import struct

_HOSTILE = [
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x08",
    b"\x80" * 12,
    b"\xff\xff",
    b"\x7f\xff",
    *(struct.pack(">i", value) for value in (2**31 - 1, -1, -2, -(2**31), 0, 1 << 20)),
    *(struct.pack(">q", value) for value in (2**63 - 1, -1, -(2**63))),
]


def mutate(rng: random.Random, data: bytes) -> bytes:
    """The bytes with one to four changes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _mutate_once(rng, out)
    return bytes(out)


def _mutate_once(rng: random.Random, out: bytearray) -> None:
    at = rng.randrange(len(out) + 1)
    match rng.randrange(8):
        case 0 if out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        case 1 if out:
            out[at % len(out)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        case 2:
            hostile = rng.choice(_HOSTILE)
            out[at : at + len(hostile)] = hostile
        case 3:
            out[at:at] = rng.choice(_HOSTILE)
        case 4:
            del out[at:]
        case 5:
            del out[at : at + rng.randrange(1, 16)]
        case 6:
            out[at:at] = rng.randbytes(rng.randrange(1, 64))
        case 7 if out:
            start = rng.randrange(len(out))
            out[at:at] = out[start : start + rng.randrange(1, 64)]
