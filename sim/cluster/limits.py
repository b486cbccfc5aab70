"""Limits of queues and schedules that a history of seconds would never reach, made small for as long as one lasts.

Snapshots are written and companion logs are cut after thousands of changes; simulated workers make some hundred.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.features.queues.core import state, supply
from penstock.features.queues.leading import shard as queue_shard
from penstock.features.schedules import state as schedule_state
from penstock.features.schedules.leading import shard as schedule_shard


@contextmanager
def small_limits() -> Iterator[None]:
    """Write snapshots, cut companion logs, and fill the memory of lanes, many times in a history."""
    small: list[tuple[Any, str, int]] = [
        (supply, "_LOOK_AHEAD", 16),
        (supply, "_INTERVALS_MAX", 30),
        (supply, "_SCOUTED_MAX", 15),
        (state, "_SNAPSHOT_ROWS_MIN", 30),
        (queue_shard, "_TRIM_RECORDS_MIN", 20),
        (queue_shard, "_RESTING_RECORDS", 50),
        (schedule_state, "_SNAPSHOT_CHANGES_MIN", 25),
        (schedule_shard, "_RECORDS_MIN", 40),
        (schedule_shard, "_PIECE", 30),
    ]
    usual = [getattr(module, name) for module, name, _ in small]
    for module, name, limit in small:
        setattr(module, name, limit)
    try:
        yield
    finally:
        for (module, name, _), limit in zip(small, usual, strict=True):
            setattr(module, name, limit)
