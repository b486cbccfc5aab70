"""How schedules are used in a simulated cluster: where their messages go, who plans, and how far ahead."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from penstock.config.settings import ScheduleSettings
from sim.cluster.history import Place

PLANNED: Final = "planned"  # the topic that schedules are fired to; nobody else writes there


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShape:
    """Planners, shards, and partitions that are fired to. Only the next hours are kept in memory."""

    planners: int = 1
    shards: int = 1
    partitions: int = 1
    assignment: tuple[tuple[int, ...], ...] | None = None
    has_rules: bool = False

    @classmethod
    def drawn(cls, random: Random) -> ScheduleShape | None:
        """Most histories have none: they cost time, and others are about other things."""
        if random.random() < 0.65:
            return None
        return cls(
            planners=random.choice((1, 2)),
            shards=random.choice((1, 1, 2)),
            partitions=random.choice((1, 2, 3)),
            has_rules=random.random() < 0.5,
        )

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple((PLANNED, index) for index in range(self.partitions))


SETTINGS: Final = ScheduleSettings(periods_ahead=2, retry_cap_ms=2_000)
