"""Schedules as JSON has them: a message, when it comes, whether it comes again, and how it stands."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.broker.delays import later_message
from penstock.broker.schedules.entering import made
from penstock.broker.schedules.messages import Fate, New, Placed
from penstock.broker.schedules.records import Schedule, State
from penstock.broker.schedules.recurrence import ByCron, Every, Missed, Rule
from penstock.broker.schedules.tally import LATENESS_MS
from penstock.http.message_types import (
    HeaderBytes,
    HeaderText,
    Instant,
    PartitionIndex,
    Priority,
    PublishRequest,
    instant,
    message_of,
    moment_ms,
    view_of,
)
from penstock.http.problems import InvalidBody
from penstock.records import Record

if TYPE_CHECKING:
    from penstock.broker.schedules.calendar import CalendarStats, Listing

LIMIT_MAX: Final = 1_000
_MEANINGLESS_MS: Final = 0
_STATES: Final = {State.PENDING: "pending", State.FAILED: "failed"}

StateName = Literal["pending", "failed"]
MissedName = Literal["once", "all", "skip"]


class ScheduleTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a message comes: once (`at`, `delay_ms`), or again and again (`every_ms`, `cron`)."""

    at: Annotated[
        Annotated[int, Meta(ge=0)] | Instant | None,
        Meta(description="RFC 3339, or milliseconds since 1970. With `every_ms` the first time. What is past is now."),
    ] = None
    delay_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="So many milliseconds from now; instead of `at`.")
    ] = None
    every_ms: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Again every so many milliseconds, 100 or more; first after that time, or at `at`."),
    ] = None
    cron: Annotated[
        str | None,
        Meta(description="Again by a cron expression: minute, hour, day, month, day of the week; or @hourly, @daily…"),
    ] = None
    time_zone: Annotated[str | None, Meta(description="Whose clock `cron` goes by; default: UTC.")] = None


class ScheduleRequest(ScheduleTime, frozen=True, kw_only=True):
    """A message, and when it is to be in its topic. One of `value` and `value_base64` is needed."""

    topic: str
    key: str | None = None
    key_base64: bytes | None = None
    value: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    value_base64: bytes | None = None
    headers: HeaderText = {}
    headers_base64: HeaderBytes = {}
    partition: Annotated[PartitionIndex | None, Meta(description="Without it the key chooses, when it comes.")] = None
    priority: Priority = None
    id: Annotated[
        str,
        Meta(description="An id of your own, of letters, digits and . _ : ~ @ + -; what is known is not added again."),
    ] = ""
    missed: Annotated[
        MissedName,
        Meta(description="What becomes of times that came while nobody led: the oldest comes late, each, or none."),
    ] = "once"


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule. Of each pair of twins one is there."""

    id: str
    topic: str
    due: Instant | None
    state: StateName
    reason: Annotated[str | UnsetType, Meta(description="Why it failed.")] = UNSET
    every_ms: int | UnsetType = UNSET
    cron: str | UnsetType = UNSET
    time_zone: str | UnsetType = UNSET
    missed: MissedName | UnsetType = UNSET
    runs: Annotated[int, Meta(description="How often it has come already.")]
    created: Instant | None
    partition: int | None
    priority: str | UnsetType = UNSET
    key: str | UnsetType | None = UNSET
    key_base64: bytes | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_base64: bytes | UnsetType = UNSET
    headers: HeaderText = {}
    headers_base64: HeaderBytes | UnsetType = UNSET


class CancelResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a schedule that was to be cancelled."""

    id: str
    status: str


class ScheduleList(msgspec.Struct, frozen=True, kw_only=True):
    """Some schedules. `next` is what to give as `after` for those behind them; empty if there are none."""

    schedules: list[ScheduleView]
    next: str


class SchedulesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: Annotated[str | None, Meta(description="Only those of this topic.")] = None
    state: Annotated[StateName | None, Meta(description="Only those that are to come, or those that failed.")] = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="How many at most.")] = 100
    after: Annotated[str, Meta(description="`next` of the page before.")] = ""


class NextQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cron: Annotated[str, Meta(description="A cron expression.")]
    time_zone: Annotated[str, Meta(description="Whose clock it goes by.")] = "UTC"
    count: Annotated[int, Meta(ge=1, le=100, description="How many times to tell.")] = 5


class NextTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The next times of a cron expression."""

    cron: str
    time_zone: str
    times: list[Instant]


class LatenessBucket(msgspec.Struct, frozen=True, kw_only=True):
    """How many came late by `le_ms` milliseconds or less; null counts all."""

    le_ms: int | None
    count: int


class ScheduleStats(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules in numbers, of the whole cluster. What is counted begins anew where another node takes over."""

    pending: int
    near: Annotated[int, Meta(description="Of those, in memory: due within days.")]
    far: Annotated[int, Meta(description="Of those, on disk only.")]
    due: Annotated[int, Meta(description="Of those, with their time come.")]
    firing: Annotated[int, Meta(description="On their way into their topics.")]
    failed: int
    fired_total: int
    cancelled_total: int
    lateness: list[LatenessBucket]


# -- in ----------------------------------------------------------------------------------------------------------------


def time_of(request: ScheduleTime, now_ms: int) -> tuple[int | None, Rule | None]:
    """When it is due first, if that is said, and its rule, if it comes again."""
    if request.at is not None and request.delay_ms is not None:
        raise InvalidBody("Give at or delay_ms, not both.")
    if request.every_ms is not None and request.cron is not None:
        raise InvalidBody("Give every_ms or cron, not both.")
    if request.time_zone is not None and request.cron is None:
        raise InvalidBody("time_zone goes with cron.")
    due_ms = moment_ms(request.at)
    if request.delay_ms is not None:
        due_ms = now_ms + request.delay_ms
    if due_ms is not None:
        due_ms = max(due_ms, 0)  # before 1970 is the past like any other
    rule: Rule | None = None
    if request.every_ms is not None:
        rule = Every(request.every_ms, 0)
    elif request.cron is not None:
        if due_ms is not None:
            raise InvalidBody("cron says when it comes first; leave out at and delay_ms.")
        rule = ByCron(request.cron, request.time_zone or "UTC")
    if due_ms is None and rule is None:
        raise InvalidBody("Say when: one of at, delay_ms, every_ms and cron is needed.")
    return due_ms, rule


def new_of(request: ScheduleRequest, now_ms: int) -> New:
    due_ms, rule = time_of(request, now_ms)
    published = PublishRequest(
        key=request.key,
        key_base64=request.key_base64,
        value=request.value,
        value_base64=request.value_base64,
        headers=request.headers,
        headers_base64=request.headers_base64,
        partition=request.partition,
        priority=request.priority,
    )
    message = later_message(request.topic, message_of(published, now_ms))
    missed, is_exact = Missed(request.missed), request.at is not None
    return New(message=message, id=request.id, due_ms=due_ms, rule=rule, missed=missed, is_exact=is_exact)


def state_of(name: StateName | None) -> State | None:
    return next((state for state, each in _STATES.items() if each == name), None)


# -- out ---------------------------------------------------------------------------------------------------------------


def schedule_view(schedule: Schedule) -> ScheduleView:
    message = schedule.message
    record = Record(0, _MEANINGLESS_MS, message.key, message.value, message.headers)
    view = view_of(record)
    return ScheduleView(
        id=schedule.id,
        topic=message.topic,
        due=instant(schedule.due_ms),
        state="failed" if schedule.state is State.FAILED else "pending",
        reason=schedule.reason or UNSET,
        runs=schedule.runs,
        created=instant(schedule.created_ms),
        partition=message.partition,
        priority=message.priority or UNSET,
        key=view.key,
        key_base64=view.key_base64,
        value=view.value,
        value_base64=view.value_base64,
        headers=view.headers,
        headers_base64=view.headers_base64,
        **_rule_view(schedule),
    )


def _rule_view(schedule: Schedule) -> dict[str, Any]:
    rule = schedule.rule
    if rule is None:
        return {}
    if isinstance(rule, Every):
        return {"every_ms": rule.every_ms, "missed": schedule.missed.value}
    return {"cron": rule.text, "time_zone": rule.zone, "missed": schedule.missed.value}


def added_view(new: New, placed: Placed, now_ms: int) -> ScheduleView:
    """A schedule as it was added just now."""
    schedule = made(new, now_ms)
    due_ms = schedule.due_ms if placed.due_ms < 0 else placed.due_ms
    return schedule_view(msgspec.structs.replace(schedule, id=placed.id, due_ms=due_ms))


def cancel_result(schedule_id: str, fate: Fate) -> CancelResult:
    return CancelResult(id=schedule_id, status=fate.value)


def list_view(listing: Listing) -> ScheduleList:
    return ScheduleList(schedules=[schedule_view(each) for each in listing.schedules], next=listing.next)


def times_view(query: NextQuery, times_ms: list[int]) -> NextTimes:
    times: list[datetime] = [moment for moment in map(instant, times_ms) if moment is not None]
    return NextTimes(cron=query.cron, time_zone=query.time_zone, times=times)


def stats_view(stats: CalendarStats) -> ScheduleStats:
    bounds: list[int | None] = [*LATENESS_MS, None]
    return ScheduleStats(
        pending=stats.pending,
        near=stats.near,
        far=stats.far,
        due=stats.due,
        firing=stats.firing,
        failed=stats.failed,
        fired_total=stats.fired_total,
        cancelled_total=stats.cancelled_total,
        lateness=[
            LatenessBucket(le_ms=bound, count=count) for bound, count in zip(bounds, stats.lateness, strict=True)
        ],
    )
