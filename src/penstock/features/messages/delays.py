"""Messages that are published now or later, for the doors that speak of messages.

A message with a due time goes into the schedule log, where it is durable before its producer is told so, and from there
into its topic when its time has come. What is due already is published like any other message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.errors import InvalidRecord, InvalidRequest, PenstockError, ScheduleExists, UnknownPartition
from penstock.features.messages.publishing import (
    COMMIT_TIMEOUT_MS,
    OutgoingMessage,
    PublishOutcome,
    check_writable,
    ensure_topic,
    publish_each,
)
from penstock.features.schedules.messages import DUE_MS_MAX, ScheduleRequest
from penstock.features.schedules.records import ScheduledMessage
from penstock.features.schedules.schedules import Schedules
from penstock.machines.ports import Ports
from penstock.priorities import PRIORITY_HEADER, priority_of
from penstock.records import Partitioner


class ScheduledAt(NamedTuple):
    """A message that is safe, and in its topic when it is due."""

    topic: str
    schedule_id: str
    due_ms: int


LaterOutcome = PublishOutcome | ScheduledAt


def due_of(
    delay_ms: int | None,
    deliver_at_ms: int | None,
    now_ms: int,
    names: tuple[str, str] = ("delay_ms", "deliver_at"),
) -> int | None:
    """When a message is to be in its topic, None if that is now: nothing was said, or the time has come already.

    ``names`` are those that the door has for the two ways to say it.
    """
    delay, moment = names
    if delay_ms is not None and deliver_at_ms is not None:
        raise InvalidRequest(f"Give {delay} or {moment}, not both.")
    if delay_ms is not None:
        if delay_ms < 0:
            raise InvalidRequest(f"{delay} is {delay_ms} ms; it has to be 0 or more.")
        due_ms = now_ms + delay_ms
    elif deliver_at_ms is not None:
        due_ms = deliver_at_ms
    else:
        return None
    if due_ms > DUE_MS_MAX:
        raise InvalidRequest(f"{delay if delay_ms is not None else moment} leads beyond the year 9999.")
    return due_ms if due_ms > now_ms else None


async def publish_now_or_later(
    ports: Ports,
    schedules: Schedules,
    topic: str,
    messages: Sequence[OutgoingMessage],
    *,
    partitioner: Partitioner | None = None,
    timeout_ms: int = COMMIT_TIMEOUT_MS,
) -> Sequence[LaterOutcome]:
    """Publish what is due and schedule the rest, and tell of each message what became of it.

    Raises only where the topic itself is the problem. The messages that are due are written first, in their order.
    """
    later = [at for at, message in enumerate(messages) if message.due_ms is not None]
    if not later:
        return await publish_each(ports, topic, messages, partitioner=partitioner, timeout_ms=timeout_ms)
    check_writable(topic)
    await ensure_topic(ports, topic)
    outcomes: list[LaterOutcome | None] = [None] * len(messages)
    if len(later) < len(messages):
        now = [at for at, message in enumerate(messages) if message.due_ms is None]
        published = await publish_each(
            ports, topic, [messages[at] for at in now], partitioner=partitioner, timeout_ms=timeout_ms
        )
        _note(outcomes, now, published)
    _note(outcomes, later, await schedule_each(schedules, topic, [messages[at] for at in later]))
    told = [outcome for outcome in outcomes if outcome is not None]
    assert len(told) == len(messages), "every message has an outcome"
    return told


def _note(outcomes: list[LaterOutcome | None], places: Iterable[int], found: Iterable[LaterOutcome]) -> None:
    for at, outcome in zip(places, found, strict=True):
        outcomes[at] = outcome


def refuse_delays(messages: Iterable[OutgoingMessage]) -> None:
    """Refuse messages for later where all have to be written together, now."""
    if any(message.due_ms is not None for message in messages):
        raise InvalidRequest("A message for later cannot be part of a transaction; schedule it after the commit.")


async def schedule_each(
    schedules: Schedules, topic: str, messages: Sequence[OutgoingMessage]
) -> list[ScheduledAt | PenstockError]:
    """Schedule messages and tell of each what became of it. One that is wrong in itself keeps no other back."""
    try:
        placed = await schedules.add([_new(topic, message) for message in messages])
    except (InvalidRequest, UnknownPartition) as error:
        if len(messages) == 1:
            return [error]
    except PenstockError as error:
        return [error] * len(messages)
    else:
        return [
            taken_by_other(each.id) if each.is_other else ScheduledAt(topic, each.id, each.due_ms) for each in placed
        ]
    # They are added all or none, so those at fault are found one by one.
    found = await asyncio.gather(*(schedule_each(schedules, topic, [message]) for message in messages))
    return [outcome for (outcome,) in found]


def taken_by_other(schedule_id: str) -> ScheduleExists:
    """Why a schedule was not added under an id."""
    return ScheduleExists(
        f"Id {schedule_id!r} stands for another schedule, which stays as it is. Take another id, or cancel or "
        "reschedule that one."
    )


def _new(topic: str, message: OutgoingMessage) -> ScheduleRequest:
    if message.timestamp_ms is not None:
        raise InvalidRecord("A message for later gets its timestamp when it is delivered; leave out the timestamp.")
    return ScheduleRequest(message=later_message(topic, message), id=message.schedule_id, due_ms=message.due_ms)


def later_message(topic: str, message: OutgoingMessage) -> ScheduledMessage:
    """A message as the schedule log keeps it."""
    headers = message.headers
    priority = priority_of(headers) if any(name == PRIORITY_HEADER for name, _ in headers) else ""
    return ScheduledMessage(topic, message.partition, message.key, message.value, headers, priority)
