"""Messages that are published now and delivered later.

Those of one topic that are sent while a call is under way wait for it and make the next one together. They are not
numbered as other batches are; instead each has an id, so a call that is repeated because its answer was lost schedules
nothing twice, unless a message was due before the repetition came. Ids of one call differ in their last number only, by
which the server knows that these messages belong together: it keeps them in one place.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future as ThreadFuture
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from penstock.client.messages import Published, Scheduled
from penstock.client.parcels import Outgoing
from penstock.client.problems import error_named
from penstock.client.transport import Transport
from penstock.client.values import Duration, milliseconds_of
from penstock.errors import ClientClosed, InvalidRequest, PenstockError, UnexpectedAnswer
from penstock.model import check_topic_name

_CALL_MESSAGES_MAX: Final = 500  # the server is busy with one for a few milliseconds, and fires late meanwhile
_CALL_BYTES_MAX: Final = 2 * 1024 * 1024
_CALLS_MAX: Final = 2  # are under way at once for a topic, if that much waits: one is made while the other is served
_WAITING_MAX: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_CHANCE: Final = random.Random()  # ids; nothing depends on nobody guessing them

DeliverAt = datetime | int | None


class _Error(msgspec.Struct, frozen=True):
    code: str
    detail: str


class _Receipt(msgspec.Struct, frozen=True):
    topic: str = ""
    partition: int = -1
    offset: int = -1
    timestamp: datetime | None = None
    schedule_id: str = ""
    due: datetime | None = None
    error: _Error | None = None

    def told(self) -> Published:
        if self.error is not None:
            raise error_named(self.error.code, self.error.detail)
        if self.schedule_id:
            return Scheduled(self.topic, self.schedule_id, _ms(self.due))
        return Published(self.topic, self.partition, self.offset, _ms(self.timestamp))


class _Receipts(msgspec.Struct, frozen=True):
    results: list[_Receipt]


class When(NamedTuple):
    """When messages are to be delivered, checked."""

    delay_ms: int | None
    deliver_at_ms: int | None

    @property
    def form(self) -> dict[str, int | None]:
        return {"deliver_at": self.deliver_at_ms} if self.delay_ms is None else {"delay_ms": self.delay_ms}


def when_of(delay: Duration | None, deliver_at: DeliverAt) -> When | None:
    """What the caller said about later, None if nothing."""
    if delay is None and deliver_at is None:
        return None
    if delay is not None and deliver_at is not None:
        raise InvalidRequest("Give delay or deliver_at, not both.")
    return When(delay_of(delay, "delay"), moment_of(deliver_at, "deliver_at"))


def delay_of(delay: Duration | None, name: str) -> int | None:
    """Milliseconds to wait, None if nothing was said."""
    return None if delay is None else milliseconds_of(delay, name)


def moment_of(moment: DeliverAt, name: str) -> int | None:
    """Milliseconds since 1970 of a datetime with a time zone, or these themselves."""
    if moment is None:
        return None
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidRequest(f"{name} needs a time zone, such as datetime.now(UTC) has.")
        return max((moment - _EPOCH) // _MILLISECOND, 0)
    if type(moment) is not int or moment < 0:
        raise InvalidRequest(f"{name} is a datetime or whole milliseconds since 1970, not {moment!r}.")
    return moment


def new_id() -> str:
    """An id for a schedule that nobody else has."""
    return f"py-{_CHANCE.getrandbits(96):024x}"


def form_of(message: Outgoing) -> dict[str, Any]:
    """A message as JSON has it."""
    form: dict[str, Any] = {"value": None} if message.value is None else {"value_base64": message.value}
    if message.key is not None:
        form["key_base64"] = message.key
    if message.headers:
        headers: dict[str, list[bytes | None]] = {}
        for name, value in message.headers:
            headers.setdefault(name, []).append(value)
        form["headers_base64"] = headers
    return form


Tell = Callable[[Published | PenstockError], None]


class _Waiting(NamedTuple):
    """A message, and how whoever waits for it hears of it."""

    form: dict[str, Any]
    size: int
    tell: Tell


class _Order:
    """Messages that somebody waits for together: ``future`` holds what became of each, once that is known of all."""

    def __init__(self, count: int) -> None:
        self.future: asyncio.Future[list[Published | PenstockError]] = asyncio.get_running_loop().create_future()
        self._told: dict[int, Published | PenstockError] = {}
        self._count = count

    def note(self, place: int, outcome: Published | PenstockError) -> None:
        self._told[place] = outcome
        if len(self._told) == self._count and not self.future.done():
            self.future.set_result([self._told[at] for at in range(self._count)])


class Later:
    """Publishes messages for later; one for each client."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._count = 0  # of messages that wait or are under way
        self._calls: dict[str, list[asyncio.Task[None]]] = {}  # by topic
        self._room = asyncio.Condition()
        self._is_closed = False

    async def send(
        self,
        topic: str,
        message: Outgoing,
        partition: int | None,
        when: When,
        future: asyncio.Future[Published] | ThreadFuture[Published],
    ) -> None:
        """Take a message and return when there is room for it; the future is told when it is safe."""
        check_topic_name(topic)
        await self._take(topic, _Waiting(_form(message, partition, when), message.size, partial(_settle, future)))

    async def _take(self, topic: str, waiting: _Waiting) -> None:
        if self._count >= _WAITING_MAX:
            await self._wait_until(lambda: self._count < _WAITING_MAX or self._is_closed)
        if self._is_closed:
            raise ClientClosed()
        self._count += 1
        line = self._waiting.setdefault(topic, deque())
        line.append(waiting)
        calls = self._calls.setdefault(topic, [])
        if not calls or (len(calls) < _CALLS_MAX and len(line) >= _CALL_MESSAGES_MAX // 2):
            calls.append(asyncio.ensure_future(self._send_all(topic)))

    async def publish(self, topic: str, message: Outgoing, partition: int | None, when: When) -> Published:
        """Have one message scheduled, and return when it is safe."""
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        await self.send(topic, message, partition, when, future)
        return await future

    async def publish_many(
        self, topic: str, messages: Iterable[Outgoing], partition: int | None, when: When
    ) -> Sequence[Published]:
        """Have messages scheduled, and return when all are safe."""
        check_topic_name(topic)
        waiting = [(_form(message, partition, when), message.size) for message in messages]
        if not waiting:
            return []
        order = _Order(len(waiting))
        for place, (form, size) in enumerate(waiting):
            await self._take(topic, _Waiting(form, size, partial(order.note, place)))
        published: list[Published] = []
        for outcome in await order.future:
            if isinstance(outcome, PenstockError):
                raise outcome
            published.append(outcome)
        return published

    async def flush(self) -> None:
        """Return when everything that was sent before is safe or refused."""
        await self._wait_until(lambda: not self._calls)

    async def close(self) -> None:
        await self.flush()
        self._is_closed = True

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            async with self._room:
                await self._room.wait()

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _send_all(self, topic: str) -> None:
        """Send what waits, one call after the other, until nothing does."""
        await asyncio.sleep(0)  # so that calls made together leave together
        waiting = self._waiting[topic]
        some: list[_Waiting] = []
        try:
            while waiting:
                some = _some_of(waiting)
                stem = new_id()
                for number, each in enumerate(some):
                    each.form["schedule_id"] = f"{stem}:{number}"
                await self._call(topic, some)
                self._count -= len(some)
                some = []
                async with self._room:
                    self._room.notify_all()
        finally:
            self._end(topic)
            left = [*some, *waiting]
            waiting.clear()
            self._count -= len(left)
            for each in left:
                each.tell(ClientClosed("The client was closed before this was safe; it may be."))
            async with self._room:
                self._room.notify_all()

    def _end(self, topic: str) -> None:
        calls = self._calls[topic]
        calls[:] = [call for call in calls if call is not asyncio.current_task()]
        if not calls:
            del self._calls[topic]

    async def _call(self, topic: str, some: Sequence[_Waiting]) -> None:
        body = {"messages": [each.form for each in some]}
        try:
            answer = await self._transport.post(_Receipts, "v1", "topics", topic, "batch", body=body)
            if len(answer.results) != len(some):
                raise UnexpectedAnswer(f"{len(some)} messages were sent, and {len(answer.results)} answered.")
        except PenstockError as error:
            if len(some) > 1 and not error.retriable:
                for each in some:  # none was taken, each for a reason of its own
                    await self._call(topic, [each])
                return
            for each in some:
                each.tell(error)
            return
        for each, receipt in zip(some, answer.results, strict=True):
            try:
                told: Published | PenstockError = receipt.told()
            except PenstockError as error:
                told = error
            each.tell(told)


def _some_of(waiting: deque[_Waiting]) -> list[_Waiting]:
    """As many as fit one call, at least one."""
    some = [waiting.popleft()]
    size = some[0].size
    while waiting and len(some) < _CALL_MESSAGES_MAX and size + waiting[0].size <= _CALL_BYTES_MAX:
        some.append(waiting.popleft())
        size += some[-1].size
    return some


def _settle(future: asyncio.Future[Published] | ThreadFuture[Published], outcome: Published | PenstockError) -> None:
    if future.done():
        return
    if isinstance(outcome, PenstockError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _form(message: Outgoing, partition: int | None, when: When) -> dict[str, Any]:
    if message.timestamp_ms is not None:
        raise InvalidRequest("A message for later gets its timestamp when it is delivered; leave out timestamp.")
    form = {**form_of(message), **when.form}
    if partition is not None:
        form["partition"] = partition
    return form


def _ms(moment: datetime | None) -> int:
    return -1 if moment is None else (moment - _EPOCH) // _MILLISECOND
