"""Which whole segments a log no longer has to keep. Pure: it looks at segments and decides, and removes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

from penstock.storage.config import UNLIMITED, LogConfig
from penstock.storage.segment import Segment


def count_expired(segments: Sequence[Segment], start_offset: int, config: LogConfig, now_ms: int) -> int:
    """How many of the oldest segments may go: deleted records, too old, or more than the log may hold.

    The last segment is never among them, because it is being written.
    """
    excess = 0
    if config.is_deleting and config.retention_bytes != UNLIMITED:
        excess = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment, following in pairwise(segments):
        is_trimmed = following.base_offset <= start_offset
        is_excess = excess > 0 and excess >= segment.size
        if not (is_trimmed or is_excess or has_expired(segment, config, now_ms)):
            break
        excess -= segment.size
        count += 1
    return count


def is_aged(active: Segment, config: LogConfig, now_ms: int) -> bool:
    """Whether the active segment must be sealed because of its age."""
    if not active.size:
        return False
    if active.created_ms is None:
        active.created_ms = now_ms
    limit_ms = config.segment_ms - _jitter_ms(active, config)
    if config.is_compacting:
        limit_ms = min(limit_ms, config.max_compaction_lag_ms)  # what is being written is never compacted
    return now_ms - active.created_ms >= limit_ms


def _jitter_ms(segment: Segment, config: LogConfig) -> int:
    """Another number for each segment of each log, and always the same one for the same segment."""
    most_ms = min(config.segment_jitter_ms, config.segment_ms)
    return crc32(f"{segment.directory}/{segment.base_offset}".encode()) % most_ms if most_ms else 0


def has_expired(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    """Whether every record of the segment is older than the topic keeps records."""
    if not config.is_deleting or config.retention_ms == UNLIMITED:
        return False
    return segment.newest_ms < now_ms - config.retention_ms
