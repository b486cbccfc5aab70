"""Serves schedules: messages for later, once or again and again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from penstock.api.messages import NewMessage, instant, view_of
from penstock.api.schedules import (
    AddedSchedule,
    AddSchedule,
    CancelledSchedules,
    CancelResult,
    CancelSchedule,
    CancelSchedules,
    CountSchedules,
    GetSchedule,
    LatenessBucket,
    ListSchedules,
    NewSchedule,
    NextTimes,
    Reschedule,
    RunSchedule,
    ScheduleList,
    ScheduleState,
    ScheduleStats,
    ScheduleTime,
    ScheduleView,
    TellTimes,
)
from penstock.errors import InvalidField, ScheduleBeingFired, ScheduleNotFound
from penstock.features.messages.delays import later_message, taken_by_other
from penstock.features.messages.publishing import check_writable, ensure_topic
from penstock.features.schedules.figures import LATENESS_MS
from penstock.features.schedules.messages import PlacedSchedule, ScheduleOutcome, ScheduleRequest, made
from penstock.features.schedules.records import ScheduleStatus, StoredSchedule
from penstock.features.schedules.recurrence import ByCron, Cron, Every, Missed, Rule
from penstock.features.schedules.schedules import ScheduleFigures, ScheduleListing
from penstock.operations.caller import Caller
from penstock.operations.guard import check_request
from penstock.operations.messages import message_of, moment_ms
from penstock.operations.services import Services
from penstock.operations.serving import serves
from penstock.partitions.beside import show_beside
from penstock.records import Record

_MEANINGLESS_MS: Final = 0
_FATES: Final[dict[ScheduleOutcome, Literal["cancelled", "not_found", "too_late"]]] = {
    ScheduleOutcome.DONE: "cancelled",
    ScheduleOutcome.NOT_FOUND: "not_found",
    ScheduleOutcome.TOO_LATE: "too_late",
}
_STATES: Final = {ScheduleStatus.PENDING: "pending", ScheduleStatus.FAILED: "failed"}


@serves(AddSchedule)
async def add_schedule(services: Services, request: AddSchedule, _caller: Caller) -> AddedSchedule:
    wanted = request.schedule
    check_writable(wanted.topic)
    new = new_of(wanted, services.clock.now_ms())
    await ensure_topic(services.ports, wanted.topic)
    (placed,) = await services.schedules.add([new])
    if placed.is_other:
        raise taken_by_other(placed.id)
    if not placed.is_new:
        with suppress(ScheduleNotFound):  # it comes in this very moment
            return AddedSchedule(schedule=await _shown(await services.schedules.show(placed.id)), is_new=False)
    show = partial(added_view, new, placed, services.clock.now_ms())
    return AddedSchedule(schedule=await show_beside((new.message,), show), is_new=placed.is_new)


@serves(ListSchedules)
async def list_schedules(services: Services, request: ListSchedules, _caller: Caller) -> ScheduleList:
    listing = await services.schedules.page(
        topic=request.topic, state=state_of(request.state), limit=request.limit, after=request.after
    )
    return await show_beside((each.message for each in listing.schedules), partial(list_view, listing))


@serves(CountSchedules)
async def count_schedules(services: Services, _request: CountSchedules, _caller: Caller) -> ScheduleStats:
    return stats_view(await services.schedules.stats())


@serves(TellTimes)
async def tell_times(services: Services, request: TellTimes, _caller: Caller) -> NextTimes:
    cron = Cron(request.cron, request.time_zone)
    times: list[int] = []
    after_ms = services.clock.now_ms()
    while len(times) < request.count:
        found = cron.next_after(after_ms)
        if found is None:
            break
        times.append(found)
        after_ms = found
    return times_view(request, times)


@serves(GetSchedule)
async def get_schedule(services: Services, request: GetSchedule, _caller: Caller) -> ScheduleView:
    return await _shown(await services.schedules.show(request.schedule))


@serves(Reschedule)
async def reschedule(services: Services, request: Reschedule, _caller: Caller) -> ScheduleView:
    due_ms, rule = time_of(request.time, services.clock.now_ms())
    return await _shown(await services.schedules.reschedule(request.schedule, due_ms=due_ms, rule=rule))


@serves(CancelSchedule)
async def cancel_schedule(services: Services, request: CancelSchedule, _caller: Caller) -> None:
    (fate,) = await services.schedules.cancel([request.schedule])
    raise_unless_done(request.schedule, fate)


@serves(CancelSchedules)
async def cancel_schedules(services: Services, request: CancelSchedules, caller: Caller) -> CancelledSchedules:
    fates = await cancel_each(services, request.ids, caller)
    return CancelledSchedules(fates=[_FATES[fate] for fate in fates])


async def cancel_each(services: Services, ids: Sequence[str], caller: Caller) -> list[ScheduleOutcome]:
    """Cancel schedules; one that the caller may not see is not there."""
    hidden: set[str] = set()
    if services.authorizer.is_on:
        for name in ids:
            try:
                await check_request(services, CancelSchedule(schedule=name), caller)
            except ScheduleNotFound:
                hidden.add(name)
    names = [name for name in ids if name not in hidden]
    fates = dict(zip(names, await services.schedules.cancel(names), strict=True)) if names else {}
    return [fates.get(name, ScheduleOutcome.NOT_FOUND) for name in ids]


def raise_unless_done(schedule_id: str, fate: ScheduleOutcome) -> None:
    """Say why a schedule was not cancelled."""
    if fate is ScheduleOutcome.NOT_FOUND:
        raise ScheduleNotFound(f"There is no schedule {schedule_id!r}: it has come already, or never was.")
    if fate is ScheduleOutcome.TOO_LATE:
        raise ScheduleBeingFired(f"It is too late to cancel {schedule_id!r}: it is on its way into its topic.")


@serves(RunSchedule)
async def run_schedule(services: Services, request: RunSchedule, _caller: Caller) -> ScheduleView:
    return await _shown(await services.schedules.run_now(request.schedule))


# -- between JSON and the broker ---------------------------------------------------------------------------------------


def time_of(request: ScheduleTime, now_ms: int) -> tuple[int | None, Rule | None]:
    """When it is due first, if that is said, and its rule, if it comes again."""
    if request.at is not None and request.delay_ms is not None:
        raise InvalidField("Give at or delay_ms, not both.")
    if request.every_ms is not None and request.cron is not None:
        raise InvalidField("Give every_ms or cron, not both.")
    if request.time_zone is not None and request.cron is None:
        raise InvalidField("time_zone goes with cron.")
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
            raise InvalidField("cron says when it comes first; leave out at and delay_ms.")
        rule = ByCron(request.cron, request.time_zone or "UTC")
    if due_ms is None and rule is None:
        raise InvalidField("Say when: one of at, delay_ms, every_ms and cron is needed.")
    return due_ms, rule


def new_of(request: NewSchedule, now_ms: int) -> ScheduleRequest:
    due_ms, rule = time_of(request, now_ms)
    published = NewMessage(
        key=request.key,
        key_base64=request.key_base64,
        value=request.value,
        value_base64=request.value_base64,
        headers=request.headers,
        headers_base64=request.headers_base64,
        headers_in_order=request.headers_in_order,
        partition=request.partition,
        priority=request.priority,
    )
    message = later_message(request.topic, message_of(published, now_ms))
    missed, is_exact = Missed(request.missed), request.at is not None
    return ScheduleRequest(message=message, id=request.id, due_ms=due_ms, rule=rule, missed=missed, is_exact=is_exact)


def state_of(name: ScheduleState | None) -> ScheduleStatus | None:
    return next((state for state, each in _STATES.items() if each == name), None)


# -- out ---------------------------------------------------------------------------------------------------------------


async def _shown(schedule: StoredSchedule) -> ScheduleView:
    return await show_beside((schedule.message,), partial(schedule_view, schedule))


def schedule_view(schedule: StoredSchedule) -> ScheduleView:
    message = schedule.message
    record = Record(0, _MEANINGLESS_MS, message.key, message.value, message.headers)
    view = view_of(record)
    return ScheduleView(
        id=schedule.id,
        topic=message.topic,
        due=instant(schedule.due_ms),
        state="failed" if schedule.state is ScheduleStatus.FAILED else "pending",
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
        headers_in_order=view.headers_in_order,
        **_rule_view(schedule),
    )


def _rule_view(schedule: StoredSchedule) -> dict[str, Any]:
    rule = schedule.rule
    if rule is None:
        return {}
    if isinstance(rule, Every):
        return {"every_ms": rule.every_ms, "first": instant(rule.anchor_ms), "missed": schedule.missed.value}
    return {"cron": rule.text, "time_zone": rule.zone, "missed": schedule.missed.value}


def added_view(new: ScheduleRequest, placed: PlacedSchedule, now_ms: int) -> ScheduleView:
    """A schedule as it was added just now."""
    schedule = made(new, now_ms)
    due_ms = schedule.due_ms if placed.due_ms < 0 else placed.due_ms
    return schedule_view(msgspec.structs.replace(schedule, id=placed.id, due_ms=due_ms))


def cancel_result(schedule_id: str, fate: ScheduleOutcome) -> CancelResult:
    return CancelResult(id=schedule_id, status=fate.value)


def list_view(listing: ScheduleListing) -> ScheduleList:
    return ScheduleList(schedules=[schedule_view(each) for each in listing.schedules], next=listing.next)


def times_view(request: TellTimes, times_ms: list[int]) -> NextTimes:
    times: list[datetime] = [moment for moment in map(instant, times_ms) if moment is not None]
    return NextTimes(cron=request.cron, time_zone=request.time_zone, times=times)


def stats_view(stats: ScheduleFigures) -> ScheduleStats:
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
