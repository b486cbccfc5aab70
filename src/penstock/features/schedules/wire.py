"""What nodes say to each other about schedules. Each call goes to the leader of the shard it names."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.features.schedules.figures import ScheduleFigures
from penstock.features.schedules.messages import PlacedSchedule, ScheduleOutcome, ScheduleRequest
from penstock.features.schedules.records import ScheduleStatus, StoredSchedule
from penstock.features.schedules.recurrence import Rule
from penstock.network.port import Method


class AddSchedules(msgspec.Struct, frozen=True):
    shard: int
    schedules: tuple[ScheduleRequest, ...]


class SchedulesAdded(msgspec.Struct, frozen=True):
    placed: tuple[PlacedSchedule, ...]


class CancelSchedules(msgspec.Struct, frozen=True):
    shard: int
    ids: tuple[str, ...]


class SchedulesCancelled(msgspec.Struct, frozen=True):
    fates: tuple[ScheduleOutcome, ...]


class ShowSchedule(msgspec.Struct, frozen=True):
    shard: int
    id: str


class ChangeSchedule(msgspec.Struct, frozen=True):
    """Have a schedule happen at another time or by another rule, or, if neither is given, at once."""

    shard: int
    id: str
    due_ms: int | None = None
    rule: Rule | None = None


class OneSchedule(msgspec.Struct, frozen=True):
    schedule: StoredSchedule


class ListShard(msgspec.Struct, frozen=True):
    """Some schedules of a shard, from after a place on that an earlier answer named."""

    shard: int
    topic: str | None
    state: ScheduleStatus | None
    limit: int
    after: str = ""


class SchedulesListed(msgspec.Struct, frozen=True):
    """``next`` is where to go on, empty at the end."""

    schedules: tuple[StoredSchedule, ...]
    next: str


class AskScheduleFigures(msgspec.Struct, frozen=True):
    """Tell what there is in the shards that a node leads, and what it did."""


class ShardFigures(msgspec.Struct, frozen=True):
    figures: ScheduleFigures


ADD: Final = Method("schedule.add", AddSchedules, SchedulesAdded, is_bulk=True)
CANCEL: Final = Method("schedule.cancel", CancelSchedules, SchedulesCancelled)
SHOW: Final = Method("schedule.show", ShowSchedule, OneSchedule, is_bulk=True)
CHANGE: Final = Method("schedule.change", ChangeSchedule, OneSchedule)
LIST: Final = Method("schedule.list", ListShard, SchedulesListed, is_bulk=True)
FIGURES: Final = Method("schedule.figures", AskScheduleFigures, ShardFigures)
