"""Messages for later: delayed publishes, and schedules, which come once or repeat.

Delayed messages of one topic that are sent while a call is in flight go together in the next one. They are not numbered
as other batches are. Instead each has an id, so a call that is repeated because its answer was lost schedules nothing
twice, unless a message was due before the repetition came. The ids of one call differ only in their last number: so the
server knows that the messages belong together, and keeps them in one place.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future as ThreadFuture
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from penstock.api.messages import PublishBatch, bytes_of, header_pairs_of
from penstock.api.schedules import (
    AddSchedule,
    CancelSchedule,
    CountSchedules,
    GetSchedule,
    ListSchedules,
    MissedName,
    NewSchedule,
    Reschedule,
    RunSchedule,
    ScheduleState,
    ScheduleStats,
    ScheduleTime,
    ScheduleView,
)
from penstock.client.messages import Published, outcomes_in
from penstock.client.publishing import CLOSED_IN_FLIGHT
from penstock.client.transport import Transport
from penstock.client.values import (
    DeliverAt,
    Duration,
    GivenHeaders,
    Key,
    Outgoing,
    Value,
    delivery_ms,
    optional_ms,
    outgoing,
)
from penstock.errors import ClientClosed, InvalidRequest, PenstockError
from penstock.model import check_topic_name
from penstock.records.batch import Headers

_CALL_MESSAGES_MAX: Final = 500  # the server takes a few milliseconds for one, and fires late meanwhile
_CALL_BYTES_MAX: Final = 2 * 1024 * 1024
_CALLS_MAX: Final = 2  # at once for a topic, if that much waits: one is prepared while the other is served
_WAITING_MAX: Final = 10_000
PAGE_SIZE: Final = 100
_CHANCE: Final = random.Random()  # for ids, which need not be hard to guess


class DeliveryTime(NamedTuple):
    """When to deliver messages: after a delay, or at an instant."""

    delay_ms: int | None
    deliver_at: int | None  # milliseconds since 1970


def delivery_time(delay: Duration | None, deliver_at: DeliverAt) -> DeliveryTime | None:
    """When to deliver; None for at once."""
    if delay is None and deliver_at is None:
        return None
    if delay is not None and deliver_at is not None:
        raise InvalidRequest("Give delay or deliver_at, not both.")
    return DeliveryTime(optional_ms(delay, "delay"), delivery_ms(deliver_at, "deliver_at"))


def new_id() -> str:
    """A unique id for a schedule."""
    return f"py-{_CHANCE.getrandbits(96):024x}"


ResultFuture = asyncio.Future[Published] | ThreadFuture[Published]


class _DelayedMessage(NamedTuple):
    """A message to send, and the future that is done when it is safe."""

    message: Outgoing
    partition: int | None
    when: DeliveryTime
    future: ResultFuture

    def settle(self, outcome: Published | PenstockError) -> None:
        if self.future.done():
            return
        if isinstance(outcome, PenstockError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class DelayedPublisher:
    """Publishes delayed messages; one for each client."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._waiting: dict[str, deque[_DelayedMessage]] = {}
        self._count = 0  # of messages that wait or are in flight
        self._calls: dict[str, list[asyncio.Task[None]]] = {}  # by topic
        self._changed = asyncio.Condition()
        self._is_closed = False

    async def send(
        self, topic: str, message: Outgoing, partition: int | None, when: DeliveryTime, future: ResultFuture
    ) -> None:
        """Take a message and return when there is room for it; the future is done when it is safe."""
        check_topic_name(topic)
        _check([message])
        await self._accept(topic, _DelayedMessage(message, partition, when, future))

    async def _accept(self, topic: str, waiting: _DelayedMessage) -> None:
        if self._count >= _WAITING_MAX:
            await self._wait_until(lambda: self._count < _WAITING_MAX or self._is_closed)
        if self._is_closed:
            raise ClientClosed()
        self._count += 1
        queue = self._waiting.setdefault(topic, deque())
        queue.append(waiting)
        calls = self._calls.setdefault(topic, [])
        if not calls or (len(calls) < _CALLS_MAX and len(queue) >= _CALL_MESSAGES_MAX // 2):
            calls.append(asyncio.ensure_future(self._send_all(topic)))

    async def publish(self, topic: str, message: Outgoing, partition: int | None, when: DeliveryTime) -> Published:
        """Schedule one message, and return when it is safe."""
        (published,) = await self.publish_many(topic, [message], partition, when)
        return published

    async def publish_many(
        self, topic: str, messages: Sequence[Outgoing], partition: int | None, when: DeliveryTime
    ) -> Sequence[Published]:
        """Schedule messages, and return when all are safe."""
        check_topic_name(topic)
        _check(messages)
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Published]] = []
        for message in messages:
            futures.append(loop.create_future())
            await self._accept(topic, _DelayedMessage(message, partition, when, futures[-1]))
        await asyncio.gather(*futures, return_exceptions=True)  # also of those refused after the first
        return [future.result() for future in futures]

    async def flush(self) -> None:
        """Return when everything that was sent before is safe or refused."""
        await self._wait_until(lambda: not self._calls)

    async def close(self) -> None:
        await self.flush()
        self._is_closed = True

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            async with self._changed:
                await self._changed.wait()

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _send_all(self, topic: str) -> None:
        """Send what waits, one call after another, until nothing is left."""
        await asyncio.sleep(0)  # so that messages of concurrent calls go together
        waiting = self._waiting[topic]
        some: list[_DelayedMessage] = []
        try:
            while waiting:
                some = _next_call(waiting)
                await self._call(topic, some, new_id())
                self._count -= len(some)
                some = []
                async with self._changed:
                    self._changed.notify_all()
        finally:
            self._end(topic)
            left = [*some, *waiting]
            waiting.clear()
            self._count -= len(left)
            for each in left:
                each.settle(ClientClosed(CLOSED_IN_FLIGHT))
            async with self._changed:
                self._changed.notify_all()

    def _end(self, topic: str) -> None:
        calls = self._calls[topic]
        calls[:] = [call for call in calls if call is not asyncio.current_task()]
        if not calls:
            del self._calls[topic]

    async def _call(self, topic: str, some: Sequence[_DelayedMessage], stem: str, first: int = 0) -> None:
        messages = [
            each.message.request(each.partition, **each.when._asdict(), schedule_id=f"{stem}:{number}")
            for number, each in enumerate(some, first)
        ]
        try:
            # The ids make it safe to send them again.
            answer = await self._transport.call(PublishBatch(topic=topic, messages=messages), can_repeat=True)
            outcomes = outcomes_in(answer, len(some))
        except PenstockError as error:
            if len(some) > 1 and not error.retriable:
                for number, each in enumerate(some):  # none was accepted; find those at fault
                    await self._call(topic, [each], stem, number)
                return
            outcomes = [error] * len(some)
        for each, outcome in zip(some, outcomes, strict=True):
            each.settle(outcome)


def _next_call(waiting: deque[_DelayedMessage]) -> list[_DelayedMessage]:
    """As many messages as fit one call; at least one."""
    some = [waiting.popleft()]
    size = some[0].message.size
    while waiting and len(some) < _CALL_MESSAGES_MAX and size + waiting[0].message.size <= _CALL_BYTES_MAX:
        some.append(waiting.popleft())
        size += some[-1].message.size
    return some


def _check(messages: Iterable[Outgoing]) -> None:
    if any(message.timestamp_ms is not None for message in messages):
        raise InvalidRequest("A delayed message gets its timestamp when it is delivered; leave out timestamp.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A message for later: when it is due, whether it repeats (``every_ms``, ``cron``), and its state."""

    id: str
    topic: str
    due: datetime | None
    value: bytes | None
    key: bytes | None = None
    header_pairs: Headers = ()
    partition: int | None = None
    priority: str = ""
    every_ms: int | None = None
    cron: str | None = None
    time_zone: str | None = None
    missed: MissedName = "once"
    runs: int = 0
    created: datetime | None = None
    state: ScheduleState = "pending"
    reason: str = ""

    @property
    def headers(self) -> Mapping[str, bytes | None]:
        """Headers by name; of a name that comes more than once, the last."""
        return dict(self.header_pairs)


_FIELDS: Final = {each.name for each in fields(Schedule)}


def _schedule(view: ScheduleView) -> Schedule:
    content = {"key": bytes_of(view, "key"), "value": bytes_of(view, "value"), "header_pairs": header_pairs_of(view)}
    told = msgspec.structs.asdict(view) | content
    return Schedule(**{name: told[name] for name in told.keys() & _FIELDS if told[name] is not msgspec.UNSET})


def _when(
    at: DeliverAt, delay: Duration | None, every: Duration | None, cron: str | None, time_zone: str | None
) -> dict[str, Any]:
    """The fields of a `ScheduleTime`."""
    if at is None and delay is None and every is None and cron is None:
        raise InvalidRequest("Give one of at, delay, every and cron.")
    return {
        "at": delivery_ms(at, "at"),
        "delay_ms": optional_ms(delay, "delay"),
        "every_ms": optional_ms(every, "every"),
        "cron": cron,
        "time_zone": time_zone,
    }


class AsyncSchedules:
    """The schedules of a cluster; `AsyncClient.schedules`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def add(
        self,
        topic: str,
        value: Value,
        *,
        at: DeliverAt = None,
        delay: Duration | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        missed: MissedName = "once",
        key: Key = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        priority: str | None = None,
        id: str = "",  # noqa: A002
    ) -> Schedule:
        """Schedule a message and return when it is safe.

        It comes once, ``at`` a time (a datetime with a time zone, or milliseconds since 1970) or after ``delay``; or
        repeatedly, ``every`` so often or by ``cron`` in a ``time_zone``. ``missed`` says what to do about times that
        passed while no node led. With an ``id`` of your own it is added once, however often you call this, until it
        has come; `ScheduleExists` if the id belongs to another schedule.
        """
        added = NewSchedule(
            topic=topic,
            id=id or new_id(),
            missed=missed,
            partition=partition,
            priority=priority,
            **outgoing(value, key, headers).content(),
            **_when(at, delay, every, cron, time_zone),
        )
        return _schedule((await self._transport.call(AddSchedule(schedule=added))).schedule)

    async def list(
        self, *, topic: str | None = None, state: ScheduleState | None = None, page_size: int = PAGE_SIZE
    ) -> AsyncIterator[Schedule]:
        """All schedules, or those of a topic or a state; fetched page by page."""
        async for page in self._list_pages(topic=topic, state=state, page_size=page_size):
            for each in page:
                yield each

    async def _list_pages(
        self, *, topic: str | None, state: ScheduleState | None, page_size: int
    ) -> AsyncIterator[Sequence[Schedule]]:
        request = ListSchedules(topic=topic, state=state, limit=page_size)
        while True:
            page = await self._transport.call(request)
            yield [_schedule(each) for each in page.schedules]
            if not page.next:
                return
            request = msgspec.structs.replace(request, after=page.next)

    async def show(self, schedule_id: str) -> Schedule:
        """One schedule; `ScheduleNotFound` if there is none, because it has come already or never existed."""
        return _schedule(await self._transport.call(GetSchedule(schedule=schedule_id)))

    async def cancel(self, schedule_id: str) -> None:
        """Cancel a schedule; `ScheduleNotFound`, or `ScheduleBeingFired` if it is too late."""
        await self._transport.call(CancelSchedule(schedule=schedule_id))

    async def reschedule(
        self,
        schedule_id: str,
        *,
        at: DeliverAt = None,
        delay: Duration | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
    ) -> Schedule:
        """Change when a schedule comes."""
        time = ScheduleTime(**_when(at, delay, every, cron, time_zone))
        return _schedule(await self._transport.call(Reschedule(schedule=schedule_id, time=time)))

    async def run(self, schedule_id: str) -> Schedule:
        """Deliver a schedule's message now; one that repeats goes on as planned."""
        return _schedule(await self._transport.call(RunSchedule(schedule=schedule_id)))

    async def stats(self) -> ScheduleStats:
        """How many schedules are pending, fired, failed and cancelled, and how late they fired."""
        return await self._transport.call(CountSchedules())
