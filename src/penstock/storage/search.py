"""Finding records by time across the segments of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.errors import CorruptRecords, MessageTooLarge, UnsupportedCompression
from penstock.records import BatchHeader, TimestampedOffset, decode_records, find_timestamp, parse_header
from penstock.storage.segment import Segment


class TimestampOffset(NamedTuple):
    """The first record at or after a point in time."""

    offset: int
    timestamp: int
    leader_epoch: int


def find_time(segments: Sequence[Segment], start_offset: int, timestamp: int) -> TimestampOffset | None:
    """The first record from ``start_offset`` on whose timestamp is at or after ``timestamp``."""
    for segment in segments:
        if segment.max_timestamp < timestamp:
            continue
        for batch, header in _batches(segment, segment.position_before_time(timestamp)):
            if header.max_timestamp < timestamp or header.next_offset <= start_offset:
                continue
            found = _find_in_batch(batch, header, max(start_offset, header.base_offset), timestamp)
            if found is not None:
                return found
    return None


def find_max_timestamp(segments: Sequence[Segment], start_offset: int) -> TimestampOffset | None:
    """The first record with the largest timestamp from ``start_offset`` on."""
    largest = max((_max_timestamp(segment, start_offset) for segment in segments if segment.size), default=-1)
    return find_time(segments, start_offset, largest)


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
