"""What one log needs to know about how to keep its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = -1
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
    # A producer that was silent for longer starts anew; its duplicates are no longer recognised.
    producer_expiry_ms: int = DAY_MS
