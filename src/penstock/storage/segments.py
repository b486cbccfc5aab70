"""The segments of one log in order: reading across them, by offset and by time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.errors import CorruptRecords, MessageTooLarge, UnsupportedCompression
from penstock.records import BatchHeader, TimestampedOffset, decode_records, find_timestamp, parse_header
from penstock.storage.files import FileSlice
from penstock.storage.ranges import Hole, OffsetRange
from penstock.storage.segment import Segment


class Segments:
    """A run of segments, of which the last is being written. Belongs to the log's owner thread."""

    __slots__ = ("_bases", "_segments", "active")

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def listed(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    def base_offsets(self) -> set[int]:
        """Where each segment begins. Runs in any thread."""
        return set(self._bases)

    def count_below(self, offset: int) -> int:
        """How many segments lie wholly below ``offset``, going by where the next one begins."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def add(self, segment: Segment) -> None:
        """Put a new segment at the end; it is the active one from now on."""
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def drop(self, count: int) -> list[Segment]:
        """Take the oldest segments away."""
        dropped = self._segments[:count]
        del self._segments[:count]
        del self._bases[:count]
        return dropped

    def replace(self, old: list[Segment], new: list[Segment]) -> None:
        """Put other segments in the place of some that are side by side."""
        at = self._segments.index(old[0])
        assert self._segments[at : at + len(old)] == old, "only sealed segments side by side are compacted"
        self._segments[at : at + len(old)] = new
        self._bases = [segment.base_offset for segment in self._segments]

    def read(self, offset: int, max_bytes: int, limit_offset: int, end_offset: int) -> FileSlice | None:
        """Whole batches of one segment from the one that holds ``offset`` on, none at or past ``limit_offset``."""
        segments, bases = self._segments, self._bases
        at = bisect_right(bases, offset) - 1
        while at < len(segments):
            segment = segments[at]
            if segment.base_offset >= limit_offset:
                return None
            at += 1
            if limit_offset >= end_offset or (at < len(bases) and bases[at] <= limit_offset):
                limit = segment.size
            else:
                limit = segment.locate(limit_offset)
            found = segment.read(offset, max_bytes, limit)
            if found is not None:
                return found
        return None

    def damage_before(self, offset: int, found: FileSlice | None, end_offset: int) -> Iterator[OffsetRange]:
        """The damage that a read from ``offset`` had to step over to find what it found, in order."""
        first = self.count_below(offset)
        for at, segment in enumerate(self._segments[first:], first):
            is_last = found is not None and segment.file is found.file
            for hole in segment.holes:
                if found is not None and is_last and hole.start >= found.position:
                    return
                extent = self._extent(at, hole, end_offset)
                if extent.next > offset:
                    yield extent
            if is_last:
                return

    def damage(self, end_offset: int) -> Iterator[OffsetRange]:
        """All damage that is known, by offsets."""
        for at, segment in enumerate(self._segments):
            for hole in segment.holes:
                yield self._extent(at, hole, end_offset)

    def _extent(self, at: int, hole: Hole, end_offset: int) -> OffsetRange:
        """Between which offsets records may have been where a hole is."""
        segment = self._segments[at]
        behind = segment.offset_behind(hole.end)
        if behind < 0:
            behind = self._bases[at + 1] if at + 1 < len(self._bases) else end_offset
        first = segment.offset_before(hole.start)
        return OffsetRange(first, max(behind, first))

    def batches(self, offset: int) -> Iterator[FileSlice]:
        """Every batch from the one that holds ``offset`` on, one slice each."""
        at = self.count_below(offset)
        while at < len(self._segments):
            segment = self._segments[at]
            for start, next_offset, size in segment.walk(segment.locate(offset)):
                yield FileSlice(segment.file, start, size, next_offset, segment)
                offset = next_offset
            # Looked up anew: retention or compaction may have come in between.
            at = max(bisect_right(self._bases, segment.base_offset), self.count_below(offset))


class TimestampOffset(NamedTuple):
    """The first record at or after a point in time."""

    offset: int
    timestamp: int
    leader_epoch: int


class Dated(NamedTuple):
    """A batch that says of itself that it reaches a point in time; whether a record of it does shows only inside."""

    batch: memoryview
    header: BatchHeader
    first_offset: int  # nothing before it counts

    def find(self, timestamp: int) -> TimestampOffset | None:
        """The first record that does. Runs in any thread."""
        return _find_in_batch(self.batch, self.header, max(self.first_offset, self.header.base_offset), timestamp)


def find_dated(segments: Sequence[Segment], first_offset: int, timestamp: int) -> Dated | None:
    """The first batch from an offset on that may hold a record at or after ``timestamp``."""
    for segment in segments:
        if segment.max_timestamp < timestamp or segment.next_offset <= first_offset:
            continue
        position = segment.position_before_time(timestamp)
        if first_offset > segment.base_offset:
            position = max(position, segment.locate(first_offset))
        for batch, header in _batches(segment, position):
            if header.max_timestamp >= timestamp and header.next_offset > first_offset:
                return Dated(batch, header, first_offset)
    return None


def largest_timestamp(segments: Sequence[Segment], start_offset: int) -> int:
    """Of all records from an offset on, as their batches tell it; -1 if there are none."""
    return max((_max_timestamp(segment, start_offset) for segment in segments if segment.size), default=-1)


def _max_timestamp(segment: Segment, start_offset: int) -> int:
    if start_offset <= segment.base_offset:
        return segment.max_timestamp
    headers = (header for _, header in _batches(segment, segment.locate(start_offset)) if header.count)
    return max((header.max_timestamp for header in headers), default=-1)


def _batches(segment: Segment, position: int) -> Iterator[tuple[memoryview, BatchHeader]]:
    for start, _, size in segment.walk(position):
        batch = memoryview(segment.file.read(start, size))
        yield batch, parse_header(batch)


def _find_in_batch(batch: memoryview, header: BatchHeader, start_offset: int, timestamp: int) -> TimestampOffset | None:
    try:
        found = find_timestamp(batch, timestamp)
        if found is not None and found.offset < start_offset:
            found = _find_from(batch, start_offset, timestamp)
    except (CorruptRecords, MessageTooLarge, UnsupportedCompression):
        # The batch arrived like this. Readers can still skip it, so point at its start.
        return TimestampOffset(start_offset, header.max_timestamp, header.leader_epoch)
    return None if found is None else TimestampOffset(found.offset, found.timestamp, header.leader_epoch)


def _find_from(batch: memoryview, start_offset: int, timestamp: int) -> TimestampedOffset | None:
    """Look into a batch whose first records have been deleted."""
    for record in decode_records(batch):
        if record.offset >= start_offset and record.timestamp >= timestamp:
            return TimestampedOffset(record.offset, record.timestamp)
    return None
