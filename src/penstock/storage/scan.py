"""Walking the bytes of a log file when they cannot be trusted.

A scan yields every batch that proves itself by its checksum, and a `Hole` for every stretch that does not. A hole at
the very end is a torn tail if nothing valid follows it; a hole with a valid batch behind it is corruption. Who scans
decides what to do about either: recovery cuts a torn tail, and nobody ever cuts anything else.

A batch's leader epoch is covered by no checksum. Where it is known which epoch wrote what, `pass_good` stops at a batch
that says otherwise; `penstock.storage.dates` finds those out where it is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

import crc32c

from penstock.records import HEADER_BYTES, BatchHeader, parse_header
from penstock.storage.epochs import FOR_EVER, LeaderEpochs
from penstock.storage.holes import Hole

_MAGIC: Final = 2
_MAGIC_POSITION: Final = 16
_MAGIC_BYTE: Final = bytes([_MAGIC])
_CRC_START: Final = 21
_LENGTH_OVERHEAD: Final = 12
_PROOF: Final = Struct(">qiibI2xi30xi")  # base offset, length, leader epoch, magic, crc, last offset delta, count
_OFFSET_SPAN_MAX: Final = 1 << 31  # no segment spans more offsets, so nothing further away belongs to this one
_SEARCH_STEP_BYTES: Final = 1 << 20


def scan(
    view: memoryview, position: int, next_offset: int, end_offset: int | None = None
) -> Iterator[tuple[int, BatchHeader] | Hole]:
    """Every batch from ``position`` on as (position, header), and every stretch that is none as a `Hole`.

    Offsets go on from ``next_offset`` and stay below ``end_offset``. The checksum does not cover them, so a batch that
    leaves a gap, as compaction does, must also agree with the one behind it.
    """
    end = len(view)
    limit = next_offset + _OFFSET_SPAN_MAX if end_offset is None else end_offset
    ahead: BatchHeader | None = None
    while position < end:
        header = ahead or batch_at(view, position, next_offset, limit)
        ahead = None
        if header is None:
            resume = _resume(view, position, next_offset, limit)
            yield Hole(position, resume)
            position = resume
            continue
        after = position + header.size
        if header.base_offset != next_offset:
            ahead = batch_at(view, after, next_offset, limit)
            if ahead is not None and ahead.base_offset < header.next_offset:
                yield Hole(position, after)
                position = after
                continue
        yield position, header
        position, next_offset = after, header.next_offset


def pass_good(
    view: memoryview, position: int, next_offset: int, end: int, epochs: LeaderEpochs | None = None
) -> tuple[int, int]:
    """Skip correct batches without gaps as fast as that can be checked; where it stopped, and the offset due there."""
    unpack, crc_of, size = _PROOF.unpack_from, crc32c.crc32c, len(view)
    due_epoch, known_until = -1, 0 if epochs is not None else FOR_EVER
    while position < end and size - position >= HEADER_BYTES:
        base_offset, length, epoch, magic, crc, delta, count = unpack(view, position)
        after = position + length + _LENGTH_OVERHEAD
        if base_offset != next_offset or magic != _MAGIC or not position + HEADER_BYTES <= after <= size:
            break
        if base_offset >= known_until and epochs is not None:
            due_epoch, known_until = epochs.span_at(base_offset)
        if epoch != due_epoch >= 0 or not 0 <= count <= delta + 1 or crc_of(view[position + _CRC_START : after]) != crc:
            break
        position, next_offset = after, base_offset + delta + 1
    return position, next_offset


def batch_at(view: memoryview, position: int, next_offset: int, end_offset: int) -> BatchHeader | None:
    """The header of the whole, correct batch with offsets of this range that starts here, if one does."""
    if len(view) - position < HEADER_BYTES:
        return None
    header = parse_header(view, position)
    base_offset, length, _, magic, crc, _, delta, _, _, _, _, _, count = header
    after = position + length + _LENGTH_OVERHEAD
    if magic != _MAGIC or not position + HEADER_BYTES <= after <= len(view):
        return None
    if base_offset < next_offset or base_offset + delta >= end_offset or not 0 <= count <= delta + 1:
        return None
    return header if crc32c.crc32c(view[position + _CRC_START : after]) == crc else None


def _resume(view: memoryview, position: int, next_offset: int, end_offset: int) -> int:
    """Where the next correct batch starts behind a bad one, or the end of the view.

    The bad batch's own length is believed if it leads to the batch with the very next offset: a search byte by byte
    could find a batch that somebody sent as the content of a message.
    """
    if len(view) - position >= HEADER_BYTES:
        bad = parse_header(view, position)
        follower = position + bad.size
        if position < follower < len(view):
            header = batch_at(view, follower, next_offset, end_offset)
            if header is not None and header.base_offset == bad.next_offset:
                return follower
    return _find_batch(view, position + 1, next_offset, end_offset)


def _find_batch(view: memoryview, position: int, next_offset: int, end_offset: int) -> int:
    end = len(view)
    start = position
    while start < end:
        stop = min(end, start + _SEARCH_STEP_BYTES)
        window = bytes(view[start : min(end, stop + HEADER_BYTES)])
        found = window.find(_MAGIC_BYTE, _MAGIC_POSITION)
        while found >= 0 and (candidate := start + found - _MAGIC_POSITION) < stop:
            if batch_at(view, candidate, next_offset, end_offset) is not None:
                return candidate
            found = window.find(_MAGIC_BYTE, found + 1)
        start = stop
    return end
