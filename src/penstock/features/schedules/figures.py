"""What was done with schedules since the last question, and how late they came. It is kept in memory alone.

What there is of schedules and what was done with them since nodes started: plain numbers, which add up.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import msgspec

from penstock.features.schedules.messages import ShardCounts

LATENESS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 60_000)


@dataclass(slots=True)
class ScheduleTally:
    """``lateness`` counts what was fired by how late that was: up to each of `LATENESS_MS`, and later."""

    added: int = 0
    fired: int = 0
    cancelled: int = 0
    failed: int = 0
    skipped: int = 0
    late_ms: int = 0  # all of it together
    lateness: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_MS) + 1))

    def note_late(self, by_ms: int) -> None:
        self.late_ms += by_ms
        self.lateness[bisect_left(LATENESS_MS, by_ms)] += 1


def _no_lateness() -> list[int]:
    return [0] * (len(LATENESS_MS) + 1)


class ScheduleFigures(msgspec.Struct, kw_only=True):
    """Those of some shards. ``late`` counts messages by how late they came: up to each of `LATENESS_MS`, and later."""

    near: int = 0
    far: int = 0
    due: int = 0
    firing: int = 0
    failed: int = 0
    added_total: int = 0
    fired_total: int = 0
    cancelled_total: int = 0
    failed_total: int = 0
    late: list[int] = msgspec.field(default_factory=_no_lateness)
    lateness_sum_ms: int = 0

    @property
    def pending(self) -> int:
        """What is still to come."""
        return self.near + self.far + self.firing

    @property
    def lateness(self) -> list[int]:
        """How many messages came at most so late, for each of `LATENESS_MS`, and all of them."""
        return list(accumulate(self.late))

    def copy(self) -> ScheduleFigures:
        return msgspec.structs.replace(self, late=list(self.late))

    def count(self, tally: ScheduleTally) -> None:
        """Add what was done in one shard."""
        self.added_total += tally.added
        self.fired_total += tally.fired
        self.cancelled_total += tally.cancelled
        self.failed_total += tally.failed
        self.lateness_sum_ms += tally.late_ms
        self.late = [known + new for known, new in zip(self.late, tally.lateness, strict=True)]

    def add_stats(self, stats: ShardCounts) -> None:
        """Add what there is in one shard."""
        self.near += stats.near
        self.far += stats.far
        self.due += stats.due
        self.firing += stats.firing
        self.failed += stats.failed

    def add(self, other: ScheduleFigures) -> None:
        """Add those of another node."""
        for name in self.__struct_fields__:
            if name != "late":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.late = [own + its for own, its in zip(self.late, other.late, strict=True)]
