"""A map from ids of schedules to numbers that costs some nine bytes an entry.

Ids are known by digests of 64 bits. Some bits of a digest choose one of 4,096 sorted arrays, 24 more are kept beside
the number: so what is found by a digest is a number that *may* be meant, wrongly so once in billions. Whoever asks
checks that against what it knows of the number.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final
from zlib import crc32

from penstock.broker.schedules.columns import from_bytes, to_bytes

_NUMBERED: Final = ("kafka:", "py-")  # ids that begin so end in a number, after a colon
_ARRAYS: Final = 4_096
_ARRAY_SHIFT: Final = 52
_PACKED_AT_ONCE: Final = 256
_TAG_SHIFT: Final = 28
_TAG_MASK: Final = (1 << 24) - 1
_NUMBER_BITS: Final = 40
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1


def digest_of(schedule_id: str) -> int:
    """What an id is known by."""
    return int.from_bytes(blake2b(schedule_id.encode(), digest_size=8).digest(), "big")


def shard_of_id(schedule_id: str, shards: int) -> int:
    """The shard that an id of a client belongs to.

    Those of Kafka's records and of our own client end in a number, which does not count: what was sent together stays
    together. So it is written as one batch, and fired as one, in the order in which it was sent.
    """
    if schedule_id.startswith(_NUMBERED):
        schedule_id = schedule_id.rpartition(":")[0] or schedule_id
    return crc32(schedule_id.encode()) % shards


class Identities:
    """Numbers, such as places in a log, by digests."""

    def __init__(self) -> None:
        self._arrays: list[array[int] | None] = [None] * _ARRAYS
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def find(self, digest: int) -> list[int]:
        """The numbers that may be meant, nearly always one or none."""
        entries = self._arrays[digest >> _ARRAY_SHIFT]
        if entries is None:
            return []
        tag = digest >> _TAG_SHIFT & _TAG_MASK
        at = bisect_left(entries, tag << _NUMBER_BITS)
        found: list[int] = []
        while at < len(entries) and entries[at] >> _NUMBER_BITS == tag:
            found.append(entries[at] & _NUMBER_MASK)
            at += 1
        return found

    def has(self, digest: int, number: int) -> bool:
        return number in self.find(digest)

    def add(self, digest: int, number: int) -> None:
        assert 0 <= number <= _NUMBER_MASK, f"{number} does not fit into {_NUMBER_BITS} bits"
        place = digest >> _ARRAY_SHIFT
        entries = self._arrays[place]
        if entries is None:
            entries = self._arrays[place] = array("Q")
        insort(entries, _entry(digest, number))
        self._size += 1

    def remove(self, digest: int, number: int) -> bool:
        """Forget an entry; False if there is none."""
        entries = self._arrays[digest >> _ARRAY_SHIFT]
        if entries is None:
            return False
        entry = _entry(digest, number)
        at = bisect_left(entries, entry)
        if at == len(entries) or entries[at] != entry:
            return False
        del entries[at]
        self._size -= 1
        return True

    def numbers(self) -> Iterator[int]:
        """All numbers, in no order that means anything."""
        for entries in self._arrays:
            for entry in entries or ():
                yield entry & _NUMBER_MASK

    # -- at once ------------------------------------------------------------------------------------------------------

    def pack(self) -> Iterator[tuple[int, list[bytes]]]:
        """All arrays as bytes, some at once, with the place of the first."""
        for place in range(0, _ARRAYS, _PACKED_AT_ONCE):
            arrays = self._arrays[place : place + _PACKED_AT_ONCE]
            if any(arrays):
                yield place, [to_bytes(entries) if entries else b"" for entries in arrays]

    def unpack(self, place: int, columns: Sequence[bytes]) -> None:
        """Take over arrays into a map that has nothing there."""
        for at, data in enumerate(columns, place):
            assert not self._arrays[at], "there are entries already"
            if data:
                entries = self._arrays[at] = from_bytes("Q", data)
                self._size += len(entries)


def _entry(digest: int, number: int) -> int:
    return (digest >> _TAG_SHIFT & _TAG_MASK) << _NUMBER_BITS | number
