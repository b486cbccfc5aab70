"""Record batches in a MessagePack body, found where they lie. Form: docs/reference/rest-binary.md."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from penstock.api import limits
from penstock.doors.rest.decoding import sentence_of
from penstock.doors.rest.problems import InvalidBody, MalformedBody

# Each batch is a copy of its own, because whoever appends it stamps it in place.
_batches: Final = msgspec.msgpack.Decoder(list[tuple[int, bytearray]])

# One batch for one of the first partitions, as clients send it most of the time: where it lies is seen at a glance.
_SINGLE: Final = Struct(">5sBBBI")
_SINGLE_FORM: Final = (b"\xdd\0\0\0\1", 0x92, 0xC6)
_FIXINTS: Final = 128

# Several, as programs send them that publish in bulk: an array of two each, of a 32-bit number and so many bytes.
_PAIR: Final = Struct(">BBIBI")
_PAIR_FORM: Final = (0x92, 0xCE, 0xC6)
_ARRAY_FORM: Final = 0xDD

_BYTES: Final = Struct(">BI")


def batches_in(body: bytearray) -> Sequence[tuple[int, bytearray | memoryview]]:
    """What is to be published; the batches lie in the body or are copies, and can be stamped either way."""
    if len(body) >= _SINGLE.size:
        array, pair, partition, kind, size = _SINGLE.unpack_from(body)
        if (array, pair, kind) == _SINGLE_FORM and partition < _FIXINTS and size == len(body) - _SINGLE.size:
            return [(partition, memoryview(body)[_SINGLE.size :])]
    batches: Sequence[tuple[int, bytearray | memoryview]] | None = _in_place(body)
    if batches is not None:
        return batches
    try:
        batches = _batches.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidBody(f"The body is not [[partition, batch], ...]: {sentence_of(error)}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedBody(f"The body is not valid MessagePack: {sentence_of(error)}") from None
    if len(batches) > limits.BATCHES_MAX:
        raise InvalidBody(f"A call takes up to {limits.BATCHES_MAX} batches, not {len(batches)}.")
    for index, _ in batches:
        if not 0 <= index <= limits.INT32_MAX:
            raise InvalidBody(f"Partitions are numbered from 0; {index} is none.")
    return batches


def _in_place(body: bytearray) -> list[tuple[int, memoryview]] | None:
    """Batches where they lie in the body, if all are told in the form of `_PAIR`; None if any of it is another one."""
    view, end, at = memoryview(body), len(body), _BYTES.size
    if end < at:
        return None
    form, count = _BYTES.unpack_from(body)
    if form != _ARRAY_FORM or count > limits.BATCHES_MAX:
        return None
    batches: list[tuple[int, memoryview]] = []
    for _ in range(count):
        if end - at < _PAIR.size:
            return None
        pair, number, partition, kind, size = _PAIR.unpack_from(body, at)
        at += _PAIR.size
        if (pair, number, kind) != _PAIR_FORM or partition > limits.INT32_MAX or size > end - at:
            return None
        batches.append((partition, view[at : at + size]))
        at += size
    return batches if at == end else None
