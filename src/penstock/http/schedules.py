"""Schedules over REST: messages for later, once or again and again; listed, looked at, moved, run and cancelled."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from penstock.broker.delays import taken_by_other
from penstock.broker.publishing import check_writable, ensure_topic
from penstock.broker.schedules.cron import Cron
from penstock.broker.schedules.messages import Fate
from penstock.errors import ScheduleBeingFired, ScheduleNotFound
from penstock.http import schedule_types as types
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, no_content, reply
from penstock.http.operation import Operation

_OK: Final = 200
_CREATED: Final = 201


async def add_schedule(door: Door, call: Call[types.ScheduleRequest, None]) -> Reply:
    """Schedule a message: 201 once it is safe, 200 with what is there if the id is known already."""
    view, is_new = await place(door, call.body)
    return reply(view, _CREATED if is_new else _OK)


async def place(door: Door, request: types.ScheduleRequest) -> tuple[types.ScheduleView, bool]:
    """Add a schedule; how it stands now, and whether it is new."""
    broker = door.broker
    check_writable(request.topic)
    new = types.new_of(request, broker.clock.now_ms())
    await ensure_topic(broker, request.topic)
    (placed,) = await broker.schedules.add([new])
    if placed.is_other:
        raise taken_by_other(placed.id)
    if not placed.is_new:
        with suppress(ScheduleNotFound):  # it comes in this very moment
            return types.schedule_view(await broker.schedules.show(placed.id)), False
    return types.added_view(new, placed, broker.clock.now_ms()), placed.is_new


async def list_schedules(door: Door, call: Call[None, types.SchedulesQuery]) -> types.ScheduleList:
    """List schedules, page by page; within a shard those that come first stand first."""
    query = call.query
    listing = await door.broker.schedules.page(
        topic=query.topic, state=types.state_of(query.state), limit=query.limit, after=query.after
    )
    return types.list_view(listing)


async def schedule_stats(door: Door, _call: Call[None, None]) -> types.ScheduleStats:
    """Count schedules: to come, fired, cancelled, failed, and how late they came."""
    return types.stats_view(await door.broker.schedules.stats())


async def next_times(door: Door, call: Call[None, types.NextQuery]) -> types.NextTimes:
    """Tell the next times of a cron expression, without scheduling anything."""
    cron = Cron(call.query.cron, call.query.time_zone)
    times: list[int] = []
    after_ms = door.broker.clock.now_ms()
    while len(times) < call.query.count:
        found = cron.next_after(after_ms)
        if found is None:
            break
        times.append(found)
        after_ms = found
    return types.times_view(call.query, times)


async def get_schedule(door: Door, call: Call[None, None]) -> types.ScheduleView:
    """Show one schedule."""
    return types.schedule_view(await door.broker.schedules.show(_id_of(call)))


async def reschedule(door: Door, call: Call[types.ScheduleTime, None]) -> types.ScheduleView:
    """Have a schedule come at another time, or by another rule. One that failed is tried again."""
    due_ms, rule = types.time_of(call.body, door.broker.clock.now_ms())
    return types.schedule_view(await door.broker.schedules.reschedule(_id_of(call), due_ms=due_ms, rule=rule))


async def cancel_schedule(door: Door, call: Call[None, None]) -> Reply:
    """Cancel a schedule. One that is being fired comes, but not again."""
    schedule_id = _id_of(call)
    (fate,) = await door.broker.schedules.cancel([schedule_id])
    raise_unless_done(schedule_id, fate)
    return no_content()


def raise_unless_done(schedule_id: str, fate: Fate) -> None:
    """Say why a schedule was not cancelled."""
    if fate is Fate.NOT_FOUND:
        raise ScheduleNotFound(f"There is no schedule {schedule_id!r}: it has come already, or never was.")
    if fate is Fate.TOO_LATE:
        raise ScheduleBeingFired(f"It is too late to cancel {schedule_id!r}: it is on its way into its topic.")


async def run_schedule(door: Door, call: Call[None, None]) -> types.ScheduleView:
    """Have a schedule come at once. One that comes again goes on as planned."""
    return types.schedule_view(await door.broker.schedules.run_now(_id_of(call)))


def _id_of(call: Call[Any, Any]) -> str:
    found: str = call.scope["path_params"]["schedule"]
    return found


_ERRORS: Final = (400, 403, 404, 408, 413, 422, 503, 504, 507)
_ONE: Final = "/v1/schedules/{schedule}"

SCHEDULE_OPERATIONS: Final = (
    Operation(
        "POST", "/v1/schedules", add_schedule, "schedules", types.ScheduleView, 201, also=(200,), errors=(*_ERRORS, 409)
    ),
    Operation("GET", "/v1/schedules", list_schedules, "schedules", types.ScheduleList, errors=(400, 422, 503)),
    Operation("GET", "/v1/schedules/stats", schedule_stats, "schedules", types.ScheduleStats, errors=(503,)),
    Operation("GET", "/v1/schedules/next", next_times, "schedules", types.NextTimes, errors=(400, 422)),
    Operation("GET", _ONE, get_schedule, "schedules", types.ScheduleView, errors=(404, 503)),
    Operation("PATCH", _ONE, reschedule, "schedules", types.ScheduleView, errors=(*_ERRORS, 409)),
    Operation("DELETE", _ONE, cancel_schedule, "schedules", None, 204, errors=(404, 409, 503, 507)),
    Operation("POST", f"{_ONE}/run", run_schedule, "schedules", types.ScheduleView, errors=(404, 409, 503, 507)),
)
