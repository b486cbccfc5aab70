"""Limits of queues and schedules that a history of seconds would never reach, made small for as long as one lasts.

Snapshots are written and companion logs are cut after thousands of changes; simulated workers make some hundred.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.broker.queues.core import lanes, state
from penstock.broker.queues.leading import upkeep
from penstock.broker.schedules import state as schedule_state
from penstock.broker.schedules.leading import upkeep as schedule_upkeep


@contextmanager
def small_limits() -> Iterator[None]:
    """Write snapshots, cut companion logs, and fill the memory of lanes, many times in a history."""
    small: list[tuple[Any, str, int]] = [
        (lanes, "_LOOK_AHEAD", 16),
        (lanes, "_INTERVALS_MAX", 30),
        (lanes, "_SCOUTED_MAX", 15),
        (state, "_SNAPSHOT_ROWS_MIN", 30),
        (upkeep, "_TRIM_RECORDS_MIN", 20),
        (upkeep, "_RESTING_RECORDS", 50),
        (schedule_state, "_SNAPSHOT_CHANGES_MIN", 25),
        (schedule_upkeep, "_RECORDS_MIN", 40),
        (schedule_upkeep, "_PIECE", 30),
    ]
    usual = [getattr(module, name) for module, name, _ in small]
    for module, name, limit in small:
        setattr(module, name, limit)
    try:
        yield
    finally:
        for (module, name, _), limit in zip(small, usual, strict=True):
            setattr(module, name, limit)
