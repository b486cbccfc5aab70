"""What is asked of schedules and what they answer.

How schedules come in: what is checked of them, and when they are due first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from penstock.errors import InvalidRequest
from penstock.features.schedules.records import ScheduledMessage, StoredSchedule
from penstock.features.schedules.recurrence import Every, Missed, Rule, check_rule, next_after
from penstock.machines.messages import Request

# -- answers -----------------------------------------------------------------------------------------------------------


class PlacedSchedule(NamedTuple):
    """What became of a schedule that was to be added.

    If its id is known already, ``offset`` is where to look for what it stands for. Should that have another id, which
    happens once in billions, add it once more with the offset among ``others``.
    """

    id: str
    due_ms: int
    is_new: bool
    offset: int = -1
    is_other: bool = False  # the id stands for something else than what was to be added


class ScheduleOutcome(Enum):
    """What became of a request about one schedule."""

    DONE = "done"
    NOT_FOUND = "not_found"
    TOO_LATE = "too_late"  # it is being fired
    LOOK = "look"  # read what is at these offsets, and ask again with the one that has the id, if one has


class JudgedSchedule(NamedTuple):
    fate: ScheduleOutcome
    offsets: tuple[int, ...] = ()


class DueSchedule(NamedTuple):
    """A schedule whose time has come, by its place in memory and in the log."""

    slot: int
    offset: int


class GrantedFiring(NamedTuple):
    """Schedules to be appended to their partition now, as this producer, from this sequence on, in this order."""

    number: int
    producer_id: int
    epoch: int
    sequence: int
    offsets: tuple[int, ...]


class NearPage(NamedTuple):
    """Some of what is to come, by time, and where to go on; None if the near ones end here."""

    entries: tuple[tuple[int, int], ...]  # time and offset
    after: tuple[int, int] | None


class ShardCounts(NamedTuple):
    near: int
    far: int
    due: int
    firing: int
    failed: int

    @property
    def pending(self) -> int:
        return self.near + self.far + self.firing


# -- requests ----------------------------------------------------------------------------------------------------------


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to be added: at a time, by a rule, or by a rule from a time on."""

    message: ScheduledMessage
    id: str = ""  # the server gives one
    due_ms: int | None = None
    rule: Rule | None = None
    missed: Missed = Missed.ONCE
    is_exact: bool = False  # the time was given as such, and not as a delay that leads elsewhere each time
    others: tuple[int, ...] = ()  # offsets that were looked at and have another id


@dataclass(frozen=True, slots=True)
class AddAll(Request[tuple[PlacedSchedule, ...]]):
    """Add schedules, all or none."""

    schedules: Sequence[ScheduleRequest]


class NamedSchedule(NamedTuple):
    """A schedule by its id, and by its offset if it was looked at."""

    id: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class CancelNamed(Request[tuple[JudgedSchedule, ...]]):
    """Have schedules not happen. One that is being fired happens, but does not come again."""

    names: Sequence[NamedSchedule]


@dataclass(frozen=True, slots=True)
class MoveSchedule(Request[JudgedSchedule]):
    """Have a schedule, as it was read from an offset, happen at another time or by another rule."""

    schedule: StoredSchedule
    offset: int
    due_ms: int | None = None
    rule: Rule | None = None


@dataclass(frozen=True, slots=True)
class RunNow(Request[JudgedSchedule]):
    """Have a schedule, as it was read from an offset, happen at once. One that comes again goes on as planned."""

    schedule: StoredSchedule
    offset: int


@dataclass(frozen=True, slots=True)
class AssignScheduleProducer(Request[None]):
    """Write as this producer, which no other shard is."""

    producer_id: int


@dataclass(frozen=True, slots=True)
class Fire(Request[GrantedFiring | None]):
    """Fire schedules, as they were read, to a partition; None if there is nothing to be appended now."""

    topic: str
    topic_id: bytes
    partition: int
    candidates: Sequence[tuple[DueSchedule, StoredSchedule]]


@dataclass(frozen=True, slots=True)
class FireAll(Request[tuple[GrantedFiring | None, ...]]):
    """Fire to several partitions at once, no two of them the same."""

    fires: Sequence[Fire]


@dataclass(frozen=True, slots=True)
class ConfirmFiring(Request[None]):
    """All of a firing is in its topic. ``schedules`` are those of it, by offset, that come again."""

    number: int
    schedules: dict[int, StoredSchedule]


@dataclass(frozen=True, slots=True)
class RefuseFiring(Request[None]):
    """Of a firing only the first ``written`` are in their topic, and the rest certainly is not."""

    number: int
    written: int
    reason: str
    schedules: dict[int, StoredSchedule]  # all of it, by offset


@dataclass(frozen=True, slots=True)
class FailSchedules(Request[None]):
    """Give up on schedules that were to be fired."""

    candidates: Sequence[tuple[DueSchedule, StoredSchedule]]
    reason: str


@dataclass(frozen=True, slots=True)
class CarryForward(Request[int]):
    """Write schedules, as they were read from these offsets, anew at the log's end; how many could not be."""

    schedules: Sequence[tuple[int, StoredSchedule]]


DUE_MS_MAX: Final = 253_402_300_799_000  # the end of the year 9999

_ID: Final = re.compile(r"(?!sched-[0-9]+-[0-9]+\Z)[A-Za-z0-9._:~@+-]{1,200}")
_TAKEN: Final = frozenset({"stats", "next", ".", ".."})  # paths of REST that mean something else


def id_of(shard: int, number: int) -> str:
    """The id that the server gives; no client's looks like it."""
    return f"sched-{shard}-{number}"


def checked(new: ScheduleRequest, now_ms: int) -> tuple[int, Rule | None]:
    """Refuse what is wrong in itself; otherwise as `first_due`."""
    if new.id and (not _ID.fullmatch(new.id) or new.id in _TAKEN):
        raise InvalidRequest(
            "An id has 1 to 200 letters, digits or any of . _ : ~ @ + -, is not 'stats' or 'next', and does not look "
            "like sched-1-2, as those of the server do."
        )
    return first_due(new.due_ms, new.rule, now_ms)


def made(new: ScheduleRequest, now_ms: int) -> StoredSchedule:
    """A schedule as it was asked for."""
    due_ms, rule = checked(new, now_ms)
    return StoredSchedule(new.id, due_ms, new.message, rule, new.missed, now_ms)


def stands_for(schedule: StoredSchedule, new: ScheduleRequest) -> bool:
    """Whether a schedule is what was to be added under its id.

    Times are compared if they were given as such. A delay leads to another time whenever it is said, and one that comes
    again has moved on.
    """
    if (schedule.message, schedule.missed) != (new.message, new.missed):
        return False
    if isinstance(new.rule, Every):
        return isinstance(schedule.rule, Every) and schedule.rule.every_ms == new.rule.every_ms
    if new.rule is not None or schedule.rule is not None:
        return schedule.rule == new.rule
    return not new.is_exact or new.due_ms == schedule.due_ms


def first_due(due_ms: int | None, rule: Rule | None, now_ms: int) -> tuple[int, Rule | None]:
    """When a schedule is due first, and its rule from then on."""
    if rule is not None:
        check_rule(rule)
        if isinstance(rule, Every):
            due_ms = now_ms + rule.every_ms if due_ms is None else due_ms
            rule = Every(rule.every_ms, due_ms)
        elif due_ms is None:
            due_ms = next_after(rule, now_ms)
    if due_ms is None:
        raise InvalidRequest("A schedule needs a time or a rule that leads to one.")
    if not 0 <= due_ms <= DUE_MS_MAX:
        raise InvalidRequest(f"A time is between 0 and {DUE_MS_MAX} ms after the beginning of 1970, not {due_ms}.")
    return due_ms, rule
