"""What nodes say to each other about schedules. Each call goes to the leader of the shard it names."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.broker.schedules.figures import CalendarStats
from penstock.broker.schedules.messages import Fate, New, Placed
from penstock.broker.schedules.records import Schedule, State
from penstock.broker.schedules.recurrence import Rule
from penstock.peers.port import Method


class AddSchedules(msgspec.Struct, frozen=True):
    shard: int
    schedules: tuple[New, ...]


class SchedulesAdded(msgspec.Struct, frozen=True):
    placed: tuple[Placed, ...]


class CancelSchedules(msgspec.Struct, frozen=True):
    shard: int
    ids: tuple[str, ...]


class SchedulesCancelled(msgspec.Struct, frozen=True):
    fates: tuple[Fate, ...]


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
    schedule: Schedule


class ListSchedules(msgspec.Struct, frozen=True):
    """Some schedules of a shard, from after a place on that an earlier answer named."""

    shard: int
    topic: str | None
    state: State | None
    limit: int
    after: str = ""


class SchedulesListed(msgspec.Struct, frozen=True):
    """``next`` is where to go on, empty at the end."""

    schedules: tuple[Schedule, ...]
    next: str


class AskFigures(msgspec.Struct, frozen=True):
    """Tell what there is in the shards that a node leads, and what it did."""


class FiguresTold(msgspec.Struct, frozen=True):
    figures: CalendarStats


ADD: Final = Method("schedule.add", AddSchedules, SchedulesAdded, is_bulk=True)
CANCEL: Final = Method("schedule.cancel", CancelSchedules, SchedulesCancelled)
SHOW: Final = Method("schedule.show", ShowSchedule, OneSchedule, is_bulk=True)
CHANGE: Final = Method("schedule.change", ChangeSchedule, OneSchedule)
LIST: Final = Method("schedule.list", ListSchedules, SchedulesListed, is_bulk=True)
FIGURES: Final = Method("schedule.figures", AskFigures, FiguresTold)
