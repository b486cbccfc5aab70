"""What one log needs to know about how to keep its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = -1
UNBOUNDED: Final = (1 << 63) - 1  # how Kafka writes a limit that nothing reaches
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one log. Durations in milliseconds, sizes in bytes; ``UNLIMITED`` where a limit may be absent."""

    segment_bytes: int = 64 * 1024 * 1024
    # A quiet topic must still seal its segments, or retention could never remove them.
    segment_ms: int = 7 * DAY_MS
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = UNLIMITED
    is_deleting: bool = True
    is_compacting: bool = False
    # A tombstone stays this long after compaction, so that a reader on its way through the log sees it.
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    min_dirty_ratio: float = 0.5
    # A record that another one supersedes is gone at the latest so long after it came; UNBOUNDED: when it is worth it.
    max_compaction_lag_ms: int = UNBOUNDED
    # Up to so much earlier than `segment_ms` a segment is sealed, so that logs made together do not roll together.
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    preallocate: bool = False
    # How long a file stays, under another name, after its segment left the log.
    file_delete_delay_ms: int = 0
    # Records, and milliseconds, after which the log is synced although no producer waits for that.
    flush_messages: int = UNBOUNDED
    flush_ms: int = UNBOUNDED
    # A producer that was silent for longer starts anew; its duplicates are no longer recognised.
    producer_expiry_ms: int = DAY_MS
