"""Schedules over gRPC: messages for later, once or again and again; listed, looked at, moved, run and cancelled."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.fields import duration, duration_ms, instant, needed, timestamp_ms, whole
from penstock.doors.grpc.messages import headers_view, message_of
from penstock.doors.grpc.method import Method, Unary
from penstock.doors.grpc.statuses import InvalidArgument
from penstock.errors import ScheduleNotFound
from penstock.features.messages.delays import later_message, taken_by_other
from penstock.features.messages.publishing import check_writable, ensure_topic
from penstock.features.schedules.figures import LATENESS_MS
from penstock.features.schedules.messages import ScheduleOutcome, ScheduleRequest, made
from penstock.features.schedules.records import ScheduleStatus, StoredSchedule
from penstock.features.schedules.recurrence import ByCron, Every, Missed, Rule
from penstock.grpc.generated import message_pb2
from penstock.grpc.generated import schedules_pb2 as pb

_PAGE_SIZE: Final = 100
_PAGE_SIZE_MAX: Final = 1_000
_IDS_MAX: Final = 10_000
_MISSED: Final[Mapping[int, Missed]] = {
    pb.MISSED_UNSPECIFIED: Missed.ONCE,
    pb.MISSED_ONCE: Missed.ONCE,
    pb.MISSED_ALL: Missed.ALL,
    pb.MISSED_SKIP: Missed.SKIP,
}
_MISSED_VIEWS: Final = {Missed.ONCE: pb.MISSED_ONCE, Missed.ALL: pb.MISSED_ALL, Missed.SKIP: pb.MISSED_SKIP}
_STATES: Final[Mapping[int, ScheduleStatus | None]] = {
    pb.SCHEDULE_STATE_UNSPECIFIED: None,
    pb.SCHEDULE_STATE_PENDING: ScheduleStatus.PENDING,
    pb.SCHEDULE_STATE_FAILED: ScheduleStatus.FAILED,
}
_FATES: Final = {
    ScheduleOutcome.DONE: pb.CancelSchedulesResponse.FATE_CANCELLED,
    ScheduleOutcome.NOT_FOUND: pb.CancelSchedulesResponse.FATE_NOT_FOUND,
    ScheduleOutcome.TOO_LATE: pb.CancelSchedulesResponse.FATE_TOO_LATE,
}


async def add_schedule(door: Door, _call: Call, request: pb.AddScheduleRequest) -> pb.AddScheduleResponse:
    broker = door.broker
    check_writable(needed(request.topic, "topic"))
    new = _new(request, broker.clock.now_ms())
    await ensure_topic(broker.ports, request.topic)
    (placed,) = await broker.schedules.add([new])
    if placed.is_other:
        raise taken_by_other(placed.id)
    if not placed.is_new:
        with suppress(ScheduleNotFound):  # it comes in this very moment
            return pb.AddScheduleResponse(schedule=_view(await broker.schedules.show(placed.id)), is_new=False)
    schedule = made(new, broker.clock.now_ms())
    due_ms = schedule.due_ms if placed.due_ms < 0 else placed.due_ms
    schedule = msgspec.structs.replace(schedule, id=placed.id, due_ms=due_ms)
    return pb.AddScheduleResponse(schedule=_view(schedule), is_new=placed.is_new)


def _new(request: pb.AddScheduleRequest, now_ms: int) -> ScheduleRequest:
    if not request.HasField("message"):
        raise InvalidArgument("message is missing.")
    if request.missed not in _MISSED:
        raise InvalidArgument(f"missed {request.missed} is none of those there are.")
    for field in ("timestamp", "delay", "deliver_at"):
        if request.message.HasField(field):
            raise InvalidArgument(f"message.{field} goes with publishing; a schedule says it in when.")
    if request.message.schedule_id:
        raise InvalidArgument("message.schedule_id goes with publishing; a schedule has id.")
    due_ms, rule = _time_of(request.when, now_ms)
    message = later_message(request.topic, message_of(request.message, "message", now_ms))
    is_exact = request.when.WhichOneof("when") == "at"
    missed = _MISSED[request.missed]
    return ScheduleRequest(message=message, id=request.id, due_ms=due_ms, rule=rule, missed=missed, is_exact=is_exact)


def _time_of(when: pb.When, now_ms: int) -> tuple[int | None, Rule | None]:
    """When it is due first, if that is said, and its rule, if it comes again."""
    kind = when.WhichOneof("when")
    if kind == "at":
        return timestamp_ms(when.at, "when.at"), None
    if kind == "delay":
        return now_ms + duration_ms(when.delay, "when.delay"), None
    if kind == "every":
        first = timestamp_ms(when.every.first, "when.every.first") if when.every.HasField("first") else None
        return first, Every(duration_ms(when.every.period, "when.every.period", low_ms=1), 0)
    if kind == "cron":
        return None, ByCron(needed(when.cron.expression, "when.cron.expression"), when.cron.time_zone or "UTC")
    raise InvalidArgument("when is missing: give at, delay, every or cron.")


async def list_schedules(door: Door, _call: Call, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
    if request.state not in _STATES:
        raise InvalidArgument(f"state {request.state} is none of those there are.")
    listing = await door.broker.schedules.page(
        topic=request.topic or None,
        state=_STATES[request.state],
        limit=whole(request.page_size, "page_size", low=1, high=_PAGE_SIZE_MAX, default=_PAGE_SIZE),
        after=request.page_token,
    )
    return pb.ListSchedulesResponse(
        schedules=[_view(schedule) for schedule in listing.schedules], next_page_token=listing.next
    )


async def get_schedule(door: Door, _call: Call, request: pb.GetScheduleRequest) -> pb.Schedule:
    return _view(await door.broker.schedules.show(needed(request.id, "id")))


async def cancel_schedules(door: Door, _call: Call, request: pb.CancelSchedulesRequest) -> pb.CancelSchedulesResponse:
    if not 1 <= len(request.ids) <= _IDS_MAX:
        raise InvalidArgument(f"ids has {len(request.ids)} entries; it takes 1 to {_IDS_MAX}.")
    fates = await door.broker.schedules.cancel(list(request.ids))
    return pb.CancelSchedulesResponse(fates=[_FATES[fate] for fate in fates])


async def reschedule(door: Door, _call: Call, request: pb.RescheduleRequest) -> pb.Schedule:
    due_ms, rule = _time_of(request.when, door.broker.clock.now_ms())
    return _view(await door.broker.schedules.reschedule(needed(request.id, "id"), due_ms=due_ms, rule=rule))


async def run_schedule(door: Door, _call: Call, request: pb.RunScheduleRequest) -> pb.Schedule:
    return _view(await door.broker.schedules.run_now(needed(request.id, "id")))


async def get_stats(door: Door, _call: Call, _request: pb.GetScheduleStatsRequest) -> pb.ScheduleStats:
    stats = await door.broker.schedules.stats()
    bounds: list[int | None] = [*LATENESS_MS, None]
    return pb.ScheduleStats(
        pending=stats.pending,
        near=stats.near,
        far=stats.far,
        due=stats.due,
        firing=stats.firing,
        failed=stats.failed,
        fired_total=stats.fired_total,
        cancelled_total=stats.cancelled_total,
        lateness=[
            pb.ScheduleStats.LatenessBucket(le_ms=bound, count=count)
            for bound, count in zip(bounds, stats.lateness, strict=True)
        ],
    )


def _view(schedule: StoredSchedule) -> pb.Schedule:
    message, rule = schedule.message, schedule.rule
    view = pb.Schedule(
        id=schedule.id,
        topic=message.topic,
        message=message_pb2.Message(
            key=message.key, value=message.value, headers=headers_view(message.headers), partition=message.partition
        ),
        due=instant(schedule.due_ms),
        created=instant(schedule.created_ms),
        runs=schedule.runs,
        state=pb.SCHEDULE_STATE_FAILED if schedule.state is ScheduleStatus.FAILED else pb.SCHEDULE_STATE_PENDING,
        reason=schedule.reason,
    )
    if rule is not None:
        view.missed = _MISSED_VIEWS[schedule.missed]
    if isinstance(rule, Every):
        view.every.CopyFrom(pb.Every(period=duration(rule.every_ms), first=instant(rule.anchor_ms)))
    elif rule is not None:
        view.cron.CopyFrom(pb.Cron(expression=rule.text, time_zone=rule.zone))
    return view


METHODS: Final[Mapping[str, Method]] = {
    "AddSchedule": Unary(add_schedule),
    "ListSchedules": Unary(list_schedules),
    "GetSchedule": Unary(get_schedule),
    "CancelSchedules": Unary(cancel_schedules),
    "Reschedule": Unary(reschedule),
    "RunSchedule": Unary(run_schedule),
    "GetScheduleStats": Unary(get_stats),
}
