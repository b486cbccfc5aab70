"""What is asked of schedules and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from penstock.broker.coordination.messages import Request
from penstock.broker.schedules.records import Message, Schedule
from penstock.broker.schedules.recurrence import Missed, Rule

# -- answers -----------------------------------------------------------------------------------------------------------


class Placed(NamedTuple):
    """What became of a schedule that was to be added.

    If its id is known already, ``offset`` is where to look for what it stands for. Should that have another id, which
    happens once in billions, add it once more with the offset among ``others``.
    """

    id: str
    due_ms: int
    is_new: bool
    offset: int = -1
    is_other: bool = False  # the id stands for something else than what was to be added


class Fate(Enum):
    """What became of a request about one schedule."""

    DONE = "done"
    NOT_FOUND = "not_found"
    TOO_LATE = "too_late"  # it is being fired
    LOOK = "look"  # read what is at these offsets, and ask again with the one that has the id, if one has


class Judged(NamedTuple):
    fate: Fate
    offsets: tuple[int, ...] = ()


class Candidate(NamedTuple):
    """A schedule whose time has come, by its place in memory and in the log."""

    slot: int
    offset: int


class Granted(NamedTuple):
    """Schedules to be appended to their partition now, as this producer, from this sequence on, in this order."""

    number: int
    producer_id: int
    epoch: int
    sequence: int
    offsets: tuple[int, ...]


class Page(NamedTuple):
    """Some of what is to come, by time, and where to go on; None if the near ones end here."""

    entries: tuple[tuple[int, int], ...]  # time and offset
    after: tuple[int, int] | None


class Stats(NamedTuple):
    near: int
    far: int
    due: int
    firing: int
    failed: int

    @property
    def pending(self) -> int:
        return self.near + self.far + self.firing


# -- requests ----------------------------------------------------------------------------------------------------------


class New(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule to be added: at a time, by a rule, or by a rule from a time on."""

    message: Message
    id: str = ""  # the server gives one
    due_ms: int | None = None
    rule: Rule | None = None
    missed: Missed = Missed.ONCE
    is_exact: bool = False  # the time was given as such, and not as a delay that leads elsewhere each time
    others: tuple[int, ...] = ()  # offsets that were looked at and have another id


@dataclass(frozen=True, slots=True)
class Add(Request[tuple[Placed, ...]]):
    """Add schedules, all or none."""

    schedules: Sequence[New]


class Named(NamedTuple):
    """A schedule by its id, and by its offset if it was looked at."""

    id: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Cancel(Request[tuple[Judged, ...]]):
    """Have schedules not happen. One that is being fired happens, but does not come again."""

    names: Sequence[Named]


@dataclass(frozen=True, slots=True)
class Reschedule(Request[Judged]):
    """Have a schedule, as it was read from an offset, happen at another time or by another rule."""

    schedule: Schedule
    offset: int
    due_ms: int | None = None
    rule: Rule | None = None


@dataclass(frozen=True, slots=True)
class RunNow(Request[Judged]):
    """Have a schedule, as it was read from an offset, happen at once. One that comes again goes on as planned."""

    schedule: Schedule
    offset: int


@dataclass(frozen=True, slots=True)
class AssignProducer(Request[None]):
    """Write as this producer, which nobody else is."""

    producer_id: int


@dataclass(frozen=True, slots=True)
class Fire(Request[Granted | None]):
    """Fire schedules, as they were read, to a partition; None if there is nothing to be appended now."""

    topic: str
    topic_id: bytes
    partition: int
    candidates: Sequence[tuple[Candidate, Schedule]]


@dataclass(frozen=True, slots=True)
class FireAll(Request[tuple[Granted | None, ...]]):
    """Fire to several partitions at once, no two of them the same."""

    fires: Sequence[Fire]


@dataclass(frozen=True, slots=True)
class Confirm(Request[None]):
    """All of a firing is in its topic. ``schedules`` are those of it, by offset, that come again."""

    number: int
    schedules: dict[int, Schedule]


@dataclass(frozen=True, slots=True)
class Refuse(Request[None]):
    """Of a firing only the first ``written`` are in their topic, and the rest certainly is not."""

    number: int
    written: int
    reason: str
    schedules: dict[int, Schedule]  # all of it, by offset


@dataclass(frozen=True, slots=True)
class Fail(Request[None]):
    """Give up on schedules that were to be fired."""

    candidates: Sequence[tuple[Candidate, Schedule]]
    reason: str


@dataclass(frozen=True, slots=True)
class Carry(Request[int]):
    """Write schedules, as they were read from these offsets, anew at the log's end; how many could not be."""

    schedules: Sequence[tuple[int, Schedule]]
