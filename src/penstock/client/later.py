"""Messages that are published now and delivered later.

They go one call at a time, not in numbered batches; instead each has an id, so a call that is repeated because its
answer was lost schedules nothing twice, unless the message was due before the repetition came.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from penstock.client.messages import Published, Scheduled
from penstock.client.parcels import Outgoing
from penstock.client.problems import error_named
from penstock.client.transport import Transport
from penstock.errors import ClientClosed, InvalidRequest, UnexpectedAnswer
from penstock.model import check_topic_name

_CALL_MESSAGES_MAX: Final = 1_000
_CALL_BYTES_MAX: Final = 2 * 1024 * 1024
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


def when_of(delay_ms: int | None, deliver_at: DeliverAt) -> When | None:
    """What the caller said about later, None if nothing."""
    if delay_ms is None and deliver_at is None:
        return None
    if delay_ms is not None and deliver_at is not None:
        raise InvalidRequest("Give delay_ms or deliver_at, not both.")
    return When(delay_of(delay_ms, "delay_ms"), moment_of(deliver_at, "deliver_at"))


def delay_of(delay_ms: int | None, name: str) -> int | None:
    """Milliseconds to wait, checked."""
    if delay_ms is not None and (type(delay_ms) is not int or delay_ms < 0):
        raise InvalidRequest(f"{name} is a whole number of milliseconds, 0 or more, not {delay_ms!r}.")
    return delay_ms


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


class Later:
    """Publishes messages for later; one for each client."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._under_way: set[asyncio.Future[Any]] = set()
        self._is_closed = False

    async def publish(self, topic: str, message: Outgoing, partition: int | None, when: When) -> Published:
        """Have one message scheduled, and return when it is safe."""
        self._check_open()
        path = ("v1", "topics", check_topic_name(topic), "publish")
        receipt = await self._transport.post(_Receipt, *path, body=self._form(message, partition, when))
        return receipt.told()

    def send(self, topic: str, message: Outgoing, partition: int | None, when: When) -> asyncio.Future[Published]:
        """The same without waiting for it."""
        task = asyncio.ensure_future(self.publish(topic, message, partition, when))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def follow(self, topic: str, message: Outgoing, partition: int | None, when: When) -> Published:
        """The same for callers in another thread, who have a future of their own."""
        return await self.send(topic, message, partition, when)

    async def publish_many(
        self, topic: str, messages: Iterable[Outgoing], partition: int | None, when: When
    ) -> Sequence[Published]:
        """Have messages scheduled, and return when all are safe."""
        self._check_open()
        told: list[Published] = []
        some: list[dict[str, Any]] = []
        size = 0
        for message in messages:
            if some and (size + message.size > _CALL_BYTES_MAX or len(some) == _CALL_MESSAGES_MAX):
                told += await self._publish_some(topic, some)
                some, size = [], 0
            some.append(self._form(message, partition, when))
            size += message.size
        if some:
            told += await self._publish_some(topic, some)
        return told

    async def _publish_some(self, topic: str, forms: list[dict[str, Any]]) -> list[Published]:
        path = ("v1", "topics", check_topic_name(topic), "batch")
        answer = await self._transport.post(_Receipts, *path, body={"messages": forms})
        if len(answer.results) != len(forms):
            raise UnexpectedAnswer(f"{len(forms)} messages were sent, and {len(answer.results)} answered.")
        return [receipt.told() for receipt in answer.results]

    def _form(self, message: Outgoing, partition: int | None, when: When) -> dict[str, Any]:
        if message.timestamp_ms is not None:
            raise InvalidRequest("A message for later gets its timestamp when it is delivered; leave out timestamp.")
        form = {**form_of(message), **when.form, "schedule_id": new_id()}
        if partition is not None:
            form["partition"] = partition
        return form

    async def flush(self) -> None:
        """Return when everything that was sent before is safe or refused."""
        if self._under_way:
            await asyncio.wait(tuple(self._under_way))

    async def close(self) -> None:
        self._is_closed = True
        await self.flush()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed()


def _ms(moment: datetime | None) -> int:
    return -1 if moment is None else (moment - _EPOCH) // _MILLISECOND
