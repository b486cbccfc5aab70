"""Dead letters over REST: listed, grouped by reason, looked at one by one, sent back, and what was sent back when."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from penstock.broker.broker import Broker
from penstock.broker.queues.redrives.records import Job
from penstock.errors import DeadLetterNotFound, PenstockError, RedriveNotFound
from penstock.http import dead_letter_types as types
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, reply
from penstock.http.operation import Operation

_ACCEPTED: Final = 202
_LOOK_SECONDS: Final = 0.02
_OFFSET_DIGITS_MAX: Final = 18


async def list_dead_letters(door: Door, call: Call[None, types.DeadLettersQuery]) -> types.DeadLetterPage:
    """List dead letters of a topic by partition and offset, page by page."""
    query = call.query
    page = await door.broker.dead_letters.page(
        call.topic,
        types.filter_of(query),
        limit=query.limit,
        cursor=query.cursor,
        has_redriven=query.include_redriven,
    )
    return types.page_view(page)


async def list_dead_letter_reasons(door: Door, call: Call[None, types.ReasonsQuery]) -> types.ReasonList:
    """Tell what dead letters of a topic died of: how many, when the first and the last, and one of them."""
    return types.reasons_view(await door.broker.dead_letters.reasons(call.topic, types.filter_of(call.query)))


async def get_dead_letter(door: Door, call: Call[None, types.GroupQuery]) -> types.DeadLetterView:
    """Show one dead letter, by its partition and offset among the dead letters."""
    partition, offset = (_number(call, name) for name in ("partition", "offset"))
    found = await door.broker.dead_letters.get(call.topic, partition, offset, group=call.query.group)
    return types.letter_view(found)


async def still_dead(broker: Broker, topic: str) -> int | None:
    """About how many dead letters a topic has; None if that cannot be told now."""
    try:
        found = await broker.dead_letters.count(topic)
    except PenstockError:
        return None
    return 0 if found.topic == topic else found.dead


def _number(call: Call[None, Any], name: str) -> int:
    text: str = call.scope["path_params"][name]
    if not (text.isdecimal() and text.isascii() and len(text) <= _OFFSET_DIGITS_MAX):
        raise DeadLetterNotFound(f"{text!r} is no {name}; give a number from 0 on.")
    return int(text)


async def redrive_dead_letters(door: Door, call: Call[types.RedriveRequest, None]) -> types.RedriveReport | Reply:
    """Send dead letters back to where they came from, or tell what that would do.

    It goes on by itself: 202 is answered with where it is, 200 if it is over.
    """
    body, letters = call.body, door.broker.dead_letters
    wanted = types.filter_of(body.filter)
    if body.dry_run:
        rehearsal = await letters.rehearse(call.topic, wanted, target=body.target)
        return types.RedriveReport(dry_run=types.rehearsal_view(rehearsal))
    by = " ".join(word for word in (body.by, f"({call.client_host})" if call.client_host else "") if word)
    job = await letters.redrive(call.topic, wanted, by=by, target=body.target, rate=body.rate, limit=body.limit)
    deadline = door.broker.clock.monotonic() + body.wait_ms / 1000
    while not job.state.is_over and door.broker.clock.monotonic() < deadline and not door.stopping.is_set():
        await asyncio.sleep(_LOOK_SECONDS)
        job = await _find(door, call, job.id, wanted.group)
    report = types.RedriveReport(redrive=types.redrive_view(job))
    return report if job.state.is_over else reply(report, _ACCEPTED)


async def _find(door: Door, call: Call[Any, Any], job_id: str, group: str | None) -> Job:
    for job in await door.broker.dead_letters.redrives(call.topic, group=group):
        if job.id == job_id:
            return job
    raise RedriveNotFound(f"There is no redrive {job_id!r} of {call.topic!r}, or it ended too long ago.")


async def list_redrives(door: Door, call: Call[None, types.GroupQuery]) -> types.RedriveList:
    """List what was sent back: who asked for it, when, which, how many, and what came of it."""
    jobs = await door.broker.dead_letters.redrives(call.topic, group=call.query.group)
    return types.RedriveList(redrives=[types.redrive_view(job) for job in jobs])


async def get_redrive(door: Door, call: Call[None, types.GroupQuery]) -> types.RedriveView:
    """Show one redrive, and how far it is."""
    return types.redrive_view(await _find(door, call, call.scope["path_params"]["redrive"], call.query.group))


async def cancel_redrive(door: Door, call: Call[None, types.GroupQuery]) -> types.RedriveView:
    """Stop a redrive. What it has begun is brought to its end first; what was sent stays sent."""
    job = await _find(door, call, call.scope["path_params"]["redrive"], call.query.group)
    return types.redrive_view(await door.broker.dead_letters.cancel(call.topic, job.id, group=call.query.group))


_LOOK_ERRORS: Final = (400, 404, 422, 500, 503)
_CHANGE_ERRORS: Final = (400, 403, 404, 408, 409, 413, 422, 503, 507)

DEAD_LETTER_OPERATIONS: Final = (
    Operation(
        "GET",
        "/v1/queues/{topic}/dead-letters",
        list_dead_letters,
        "queues",
        types.DeadLetterPage,
        errors=_LOOK_ERRORS,
    ),
    Operation(
        "GET",
        "/v1/queues/{topic}/dead-letters/reasons",
        list_dead_letter_reasons,
        "queues",
        types.ReasonList,
        errors=_LOOK_ERRORS,
    ),
    Operation(
        "GET",
        "/v1/queues/{topic}/dead-letters/{partition}/{offset}",
        get_dead_letter,
        "queues",
        types.DeadLetterView,
        errors=_LOOK_ERRORS,
    ),
    Operation(
        "POST",
        "/v1/queues/{topic}/redrive",
        redrive_dead_letters,
        "queues",
        types.RedriveReport,
        also=(202,),
        errors=_CHANGE_ERRORS,
        is_body_optional=True,
    ),
    Operation("GET", "/v1/queues/{topic}/redrives", list_redrives, "queues", types.RedriveList, errors=(404, 422, 503)),
    Operation(
        "GET", "/v1/queues/{topic}/redrives/{redrive}", get_redrive, "queues", types.RedriveView, errors=(404, 422, 503)
    ),
    Operation(
        "POST",
        "/v1/queues/{topic}/redrives/{redrive}/cancel",
        cancel_redrive,
        "queues",
        types.RedriveView,
        errors=(403, 404, 422, 503),
    ),
)
