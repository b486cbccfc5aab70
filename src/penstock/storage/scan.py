"""Walking the bytes of a log file when they cannot be trusted.

A scan yields every batch that proves itself by its checksum, and a `Hole` for every stretch that does not. A hole at
the very end is a torn tail if nothing valid follows it; a hole with a valid batch behind it is corruption. The caller
decides what to do about either: recovery cuts a torn tail, and nothing ever cuts anything else.

Files are read in windows and never mapped: a page that the disk cannot read is an error to ``read``, and ends the
process where it is mapped (SIGBUS). An unreadable page comes as filler instead, which is part of no batch: the batches
around it fail their checksums, and become a hole like any other damage.

A batch's leader epoch is covered by no checksum. Where it is known which epoch wrote what, `pass_good` stops at a batch
that says otherwise; `penstock.storage.epoch_repair` finds those out where it is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

import crc32c

from penstock.records import HEADER_BYTES, BatchHeader, parse_header
from penstock.storage.epochs import FOR_EVER, LeaderEpochs
from penstock.storage.files import File, read_around
from penstock.storage.ranges import Hole

WINDOW_BYTES: Final = 256 * 1024


class FileBytes:
    """The first ``size`` bytes of a file, or all that there are."""

    __slots__ = ("_file", "_start", "_window", "_window_bytes", "size", "unreadable_to")

    def __init__(self, file: File, size: int | None = None, *, window_bytes: int = WINDOW_BYTES) -> None:
        self._file = file
        self._start = 0
        self._window = memoryview(b"")
        self._window_bytes = window_bytes
        self.unreadable_to = -1  # the end of the last page that could not be read
        there = file.current_size()  # a stranger may have cut it
        self.size = there if size is None else min(size, there)

    def at(self, position: int, size: int) -> memoryview:
        """``size`` bytes from ``position``; fewer at the end. They stay what they are, whatever is read next."""
        start = position - self._start
        if start < 0 or start + size > len(self._window):
            wanted = min(max(size, self._window_bytes), self.size - position)
            if wanted < size:
                size = max(wanted, 0)
            self._window = memoryview(read_around(self._file, position, max(wanted, 0), self._on_unreadable))
            self._start, start = position, 0
        return self._window[start : start + size]

    def _on_unreadable(self, end: int) -> None:
        self.unreadable_to = max(self.unreadable_to, end)

    def from_here(self, position: int, size: int) -> memoryview:
        """As `at`, and whatever else lies ready behind it."""
        start = position - self._start
        if start < 0 or start + size > len(self._window):
            self.at(position, size)
            start = position - self._start
        return self._window[start:]

    def crc(self, start: int, end: int) -> int:
        """The CRC32C of a range, however large."""
        crc = 0
        while start < end:
            part = self.at(start, min(end - start, WINDOW_BYTES))
            if not part:
                break
            crc = crc32c.crc32c(part, crc)
            start += len(part)
        return crc


_MAGIC: Final = 2
_MAGIC_POSITION: Final = 16
_MAGIC_BYTE: Final = bytes([_MAGIC])
_CRC_START: Final = 21
_LENGTH_OVERHEAD: Final = 12
_PROOF: Final = Struct(">qiibI2xi30xi")  # base offset, length, leader epoch, magic, crc, last offset delta, count
_OFFSET_SPAN_MAX: Final = 1 << 31  # no segment spans more offsets, so nothing further away belongs to this one
_SEARCH_STEP_BYTES: Final = 1 << 20


def scan(
    source: FileBytes, position: int, next_offset: int, end_offset: int | None = None
) -> Iterator[tuple[int, BatchHeader] | Hole]:
    """Every batch from ``position`` on as (position, header), and every stretch that is none as a `Hole`.

    Offsets go on from ``next_offset`` and stay below ``end_offset``. The checksum does not cover them, so a batch that
    leaves a gap, as compaction does, must also agree with the one behind it.
    """
    end = source.size
    limit = next_offset + _OFFSET_SPAN_MAX if end_offset is None else end_offset
    ahead: BatchHeader | None = None
    while position < end:
        header = ahead or batch_at(source, position, next_offset, limit)
        ahead = None
        if header is None:
            resume = _resume(source, position, next_offset, limit)
            yield Hole(position, resume)
            position = resume
            continue
        after = position + header.size
        if header.base_offset != next_offset:
            ahead = batch_at(source, after, next_offset, limit)
            if ahead is not None and ahead.base_offset < header.next_offset:
                yield Hole(position, after)
                position = after
                continue
        yield position, header
        position, next_offset = after, header.next_offset


def pass_good(
    source: FileBytes, position: int, next_offset: int, end: int, end_offset: int, epochs: LeaderEpochs | None = None
) -> tuple[int, int]:
    """Skip correct batches without gaps as fast as that can be checked; where it stopped, and the offset due there."""
    unpack, crc_of = _PROOF.unpack_from, crc32c.crc32c
    due_epoch, known_until = -1, 0 if epochs is not None else FOR_EVER
    window, at, ready = memoryview(b""), 0, 0  # what lies ready from the position on
    while position < end and next_offset < end_offset and source.size - position >= HEADER_BYTES:
        if ready - at < HEADER_BYTES:
            window, at = source.from_here(position, HEADER_BYTES), 0
            ready = len(window)
            if ready < HEADER_BYTES:
                break  # the file is being cut
        base_offset, length, epoch, magic, crc, delta, count = unpack(window, at)
        size = length + _LENGTH_OVERHEAD
        if base_offset != next_offset or magic != _MAGIC or not HEADER_BYTES <= size <= source.size - position:
            break
        if base_offset >= known_until and epochs is not None:
            due_epoch, known_until = epochs.span_at(base_offset)
        if epoch != due_epoch >= 0 or not 0 <= count <= delta + 1:
            break
        if ready - at < size:
            window, at = source.from_here(position, size), 0
            ready = len(window)
        if crc_of(window[at + _CRC_START : at + size]) != crc:
            break
        position, at, next_offset = position + size, at + size, base_offset + delta + 1
    return position, next_offset


def first_bad(data: memoryview) -> int | None:
    """Where in whole batches, one behind the other, the first one lies that fails its checksum."""
    unpack, crc_of, size = _PROOF.unpack_from, crc32c.crc32c, len(data)
    position = 0
    while position < size:
        if size - position < HEADER_BYTES:
            return position
        _, length, _, magic, crc, _, _ = unpack(data, position)
        after = position + length + _LENGTH_OVERHEAD
        if magic != _MAGIC or not position + HEADER_BYTES <= after <= size:
            return position
        if crc_of(data[position + _CRC_START : after]) != crc:
            return position
        position = after
    return None


def batch_at(source: FileBytes, position: int, next_offset: int, end_offset: int) -> BatchHeader | None:
    """The header of the whole, correct batch with offsets of this range that starts here, if one does."""
    head = source.at(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None
    header = parse_header(head)
    base_offset, length, _, magic, crc, _, delta, _, _, _, _, _, count = header
    after = position + length + _LENGTH_OVERHEAD
    if magic != _MAGIC or not position + HEADER_BYTES <= after <= source.size:
        return None
    if base_offset < next_offset or base_offset + delta >= end_offset or not 0 <= count <= delta + 1:
        return None
    return header if source.crc(position + _CRC_START, after) == crc else None


def _resume(source: FileBytes, position: int, next_offset: int, end_offset: int) -> int:
    """Where the next correct batch starts behind a bad one, or the end of the file.

    The bad batch's own length is believed if it leads to the batch with the very next offset: a search byte by byte
    could find a batch that a producer sent as the content of a message.
    """
    head = source.at(position, HEADER_BYTES)
    if len(head) == HEADER_BYTES:
        bad = parse_header(head)
        follower = position + bad.size
        if position < follower < source.size:
            header = batch_at(source, follower, next_offset, end_offset)
            if header is not None and header.base_offset == bad.next_offset:
                return follower
    return _find_batch(source, position + 1, next_offset, end_offset)


def _find_batch(source: FileBytes, position: int, next_offset: int, end_offset: int) -> int:
    end = source.size
    start = position
    while start < end:
        stop = min(end, start + _SEARCH_STEP_BYTES)
        window = bytes(source.at(start, min(end, stop + HEADER_BYTES) - start))
        found = window.find(_MAGIC_BYTE, _MAGIC_POSITION)
        while found >= 0 and (candidate := start + found - _MAGIC_POSITION) < stop:
            if batch_at(source, candidate, next_offset, end_offset) is not None:
                return candidate
            found = window.find(_MAGIC_BYTE, found + 1)
        start = stop
    return end
