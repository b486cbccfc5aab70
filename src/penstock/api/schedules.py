"""Schedules: messages for later, once or again and again; listed, looked at, moved, run and cancelled."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock import errors
from penstock.api import limits
from penstock.api.limits import Instant, PartitionIndex, TopicName
from penstock.api.messages import HeaderBytes, HeaderPairs, HeaderText, Priority
from penstock.api.operation import Action, Admits, Repeat, Request, Resource, operation

ScheduleState = Literal["pending", "failed"]
MissedName = Literal["once", "all", "skip"]

_CHANGE_ERRORS: Final = (errors.ScheduleNotFound, errors.ScheduleBeingFired, errors.NotLeader, errors.DiskFull)


class ScheduleTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
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


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule. Of each pair of twins one is there."""

    id: str
    topic: str
    due: Instant | None
    state: ScheduleState
    reason: Annotated[str | UnsetType, Meta(description="Why it failed.")] = UNSET
    every_ms: int | UnsetType = UNSET
    first: Annotated[Instant | UnsetType | None, Meta(description="From when on it is counted.")] = UNSET
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
    headers_in_order: HeaderPairs | UnsetType = UNSET


class CancelResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a schedule that was to be cancelled."""

    id: str
    status: str


class ScheduleList(msgspec.Struct, frozen=True, kw_only=True):
    """Some schedules. `next` is what to give as `after` for those behind them; empty if there are none."""

    schedules: list[ScheduleView]
    next: str


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


class NewSchedule(ScheduleTime, frozen=True, kw_only=True):
    """A message, and when it is to be in its topic. One of `value` and `value_base64` is needed."""

    topic: TopicName
    key: str | None = None
    key_base64: bytes | None = None
    value: msgspec.Raw | UnsetType = UNSET
    value_base64: bytes | None = None
    headers: HeaderText = {}
    headers_base64: HeaderBytes = {}
    headers_in_order: HeaderPairs | None = None
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


class AddedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """How a schedule stands now, and whether it is new."""

    schedule: ScheduleView
    is_new: bool


@operation(
    "POST /v1/schedules",
    tag="schedules",
    needs=Action.WRITE.of(Resource.TOPIC, "schedule.topic"),
    repeat=Repeat.NAMED,
    errors=(
        errors.PolicyViolation,
        errors.UnknownTopic,
        errors.ScheduleExists,
        errors.NotLeader,
        errors.RequestTimedOut,
        errors.DiskFull,
    ),
    status=201,
    also={200: lambda answer: not answer.is_new},
    body="schedule",
    shows="schedule",
)
class AddSchedule(Request[AddedSchedule], frozen=True, kw_only=True):
    """Schedule a message: 201 once it is safe, 200 with what is there if the id is known already."""

    schedule: NewSchedule


@operation(
    "GET /v1/schedules",
    tag="schedules",
    needs=Action.DESCRIBE.of(Resource.SCHEDULE),
    repeat=Repeat.SAFE,
    errors=(errors.InvalidRequest, errors.NotLeader),
)
class ListSchedules(Request[ScheduleList], frozen=True, kw_only=True):
    """List schedules, page by page; within a shard those that come first stand first."""

    topic: Annotated[str | None, Meta(description="Only those of this topic.")] = None
    state: Annotated[ScheduleState | None, Meta(description="Only those that are to come, or those that failed.")] = (
        None
    )
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_MAX, description="How many at most.")] = 100
    after: Annotated[str, Meta(description="`next` of the page before.")] = ""


@operation(
    "GET /v1/schedules/stats",
    name="schedule_stats",
    tag="schedules",
    needs=Action.DESCRIBE.of(Resource.CLUSTER),
    repeat=Repeat.SAFE,
    errors=(errors.NotLeader,),
)
class CountSchedules(Request[ScheduleStats], frozen=True, kw_only=True):
    """Count schedules: to come, fired, cancelled, failed, and how late they came."""


@operation(
    "GET /v1/schedules/next",
    name="next_times",
    tag="schedules",
    needs=(),
    admits=Admits.AUTHENTICATED,
    repeat=Repeat.SAFE,
    errors=(errors.InvalidRequest,),
)
class TellTimes(Request[NextTimes], frozen=True, kw_only=True):
    """Tell the next times of a cron expression, without scheduling anything."""

    cron: Annotated[str, Meta(description="A cron expression.")]
    time_zone: Annotated[str, Meta(description="Whose clock it goes by.")] = "UTC"
    count: Annotated[int, Meta(ge=1, le=limits.SCHEDULE_TIMES_MAX, description="How many times to tell.")] = 5


class CancelledSchedules(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each schedule, in the order of their ids. `too_late`: it is being fired."""

    fates: list[Literal["cancelled", "not_found", "too_late"]]


@operation(
    "POST /v1/schedules/cancel",
    tag="schedules",
    needs=(),
    admits=Admits.AUTHENTICATED,  # each schedule needs what `CancelSchedule` needs
    repeat=Repeat.SAME,
    errors=(errors.NotLeader, errors.DiskFull),
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class CancelSchedules(Request[CancelledSchedules], frozen=True, kw_only=True):
    """Cancel schedules, and tell of each what became of it. One that is being fired comes, but not again."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=limits.SCHEDULES_CANCELLED_MAX)]


@operation(
    "GET /v1/schedules/{schedule}",
    tag="schedules",
    needs=Action.DESCRIBE.of(Resource.SCHEDULE, "schedule"),
    repeat=Repeat.SAFE,
    errors=(errors.ScheduleNotFound, errors.NotLeader),
)
class GetSchedule(Request[ScheduleView], frozen=True, kw_only=True):
    """Show one schedule."""

    schedule: str


@operation(
    "PATCH /v1/schedules/{schedule}",
    tag="schedules",
    needs=Action.ALTER.of(Resource.SCHEDULE, "schedule"),
    repeat=Repeat.SAME,
    errors=(*_CHANGE_ERRORS, errors.PolicyViolation, errors.RequestTimedOut),
    body="time",
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class Reschedule(Request[ScheduleView], frozen=True, kw_only=True):
    """Have a schedule come at another time, or by another rule. One that failed is tried again."""

    schedule: str
    time: ScheduleTime


@operation(
    "DELETE /v1/schedules/{schedule}",
    tag="schedules",
    needs=Action.DELETE.of(Resource.SCHEDULE, "schedule"),
    repeat=Repeat.SAME,
    errors=_CHANGE_ERRORS,
)
class CancelSchedule(Request[None], frozen=True, kw_only=True):
    """Cancel a schedule. One that is being fired comes, but not again."""

    schedule: str


@operation(
    "POST /v1/schedules/{schedule}/run",
    tag="schedules",
    needs=Action.ALTER.of(Resource.SCHEDULE, "schedule"),
    repeat=Repeat.AGAIN,
    errors=_CHANGE_ERRORS,
)
class RunSchedule(Request[ScheduleView], frozen=True, kw_only=True):
    """Have a schedule come at once. One that comes again goes on as planned."""

    schedule: str
