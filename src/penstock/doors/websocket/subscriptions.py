"""Subscriptions of a WebSocket session: messages that are sent by themselves, as long as there are credits.

A queue subscription receives under leases for its group, and goes on when its session is resumed. A stream subscription
reads partitions from a place on and keeps nothing; it ends with its socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from msgspec.structs import asdict

from penstock.api.messages import DeliveredMessage, view_of
from penstock.api.queues import QueueMessage
from penstock.doors.rest.problems import InternalError, problem_of
from penstock.doors.websocket.frames import WEBSOCKET_PATH, Ended, Reply
from penstock.errors import AccessError, PenstockError, UnknownPartition, UnknownTopic
from penstock.features.messages.reading import read_messages
from penstock.features.queues.leases import PartitionLease, reject_unreadable, unpack_beside
from penstock.operations.queues import give_back, give_back_leases, message_views
from penstock.operations.services import Services
from penstock.partitions.access import Start
from penstock.partitions.beside import show_beside
from penstock.records import Record

log = logging.getLogger(__name__)

_DELIVERY_MESSAGES_MAX: Final = 500
_DELIVERY_BYTES_MAX: Final = 1024 * 1024
_WAIT_MS: Final = 20_000
_PAUSE_SECONDS: Final = 0.25


async def _no_check() -> None:
    """For subscriptions of doors without a gate."""


class Credits:
    """How many messages a client is ready to take."""

    def __init__(self, amount: int) -> None:
        self._amount = amount
        self._has_any = asyncio.Event()
        self._line = asyncio.Lock()
        self.add(0)

    @property
    def amount(self) -> int:
        return self._amount

    def add(self, more: int) -> None:
        self._amount += more
        if self._amount > 0:
            self._has_any.set()

    def spend(self, count: int) -> None:
        self._amount -= count
        if self._amount <= 0:
            self._has_any.clear()

    async def wait(self) -> None:
        """Return when there are some. Who waits takes turns: whoever had some queues up behind the others."""
        async with self._line:
            while self._amount <= 0:
                await self._has_any.wait()


class Subscriber(Protocol):
    """The session that a subscription sends to."""

    consumer: str

    async def wait_to_read(self) -> None:
        """Return once its client's quotas allow more messages."""

    async def send(self, frame: Reply) -> bool: ...

    async def deliver(
        self,
        subscription: Subscription,
        messages: list[QueueMessage] | list[DeliveredMessage],
        leases: Sequence[PartitionLease],
    ) -> None: ...

    def drop(self, subscription: Subscription) -> bool:
        """Forget a subscription that is over; whether it was one of the session's."""


class Subscription:
    """What both kinds share: credits, and tasks that run while their session has a socket."""

    def __init__(self, services: Services, session: Subscriber, name: str, topic: str, amount: int) -> None:
        self._services = services
        self._session = session
        self.name = name
        self.topic = topic
        self.credits = Credits(amount)
        self.group: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.check: Callable[[], Awaitable[None]] = _no_check  # refuses once the client may no longer read
        self._checked_at = services.authorizer.version

    async def _check(self) -> None:
        """Look again whether the client may read, if the rules have changed or its credential may have ended."""
        authorizer = self._services.authorizer
        if authorizer.is_on:
            self._checked_at = authorizer.version
            await self.check()

    def start(self) -> None:
        """Send messages from now on; nothing happens if it does already."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(work) for work in self._work()]

    def _work(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What it does while its session has a socket."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Send nothing more. Must not be called by its own tasks."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refuse(self, error: PenstockError) -> None:
        """End it, because its client may no longer read; not from one of its own tasks."""
        await self.stop()
        await self._end(error)

    async def _outlast(self, error: PenstockError) -> bool:
        """Whether it is worth going on after an error, which takes a moment then; if not, the client is told."""
        if error.retriable and not isinstance(error, (UnknownTopic, UnknownPartition)):
            await asyncio.sleep(_PAUSE_SECONDS)
            return True
        await self._end(error)
        return False

    async def _end(self, error: PenstockError) -> None:
        if self._session.drop(self):
            await self._session.send(Ended(subscription=self.name, error=problem_of(error, WEBSOCKET_PATH)))

    async def _fail(self) -> None:
        log.exception("A subscription of %s met a bug.", self.topic)
        await self._end(InternalError("Something went wrong inside the node; its log says more."))


class QueueSubscription(Subscription):
    """Messages of a topic under leases, for a group."""

    def __init__(
        self,
        services: Services,
        session: Subscriber,
        name: str,
        topic: str,
        amount: int,
        group: str,
        visibility_ms: int | None,
    ) -> None:
        super().__init__(services, session, name, topic, amount)
        self.group = group
        self._group = group
        self._visibility_timeout_ms = visibility_ms

    def _work(self) -> Iterable[Coroutine[Any, Any, None]]:
        yield self._receive()

    async def _receive(self) -> None:
        while True:
            await self.credits.wait()
            try:
                await self._session.wait_to_read()
                await self._check()
                leases = await self._services.queues.receive(
                    self.topic,
                    self._group,
                    consumer=self._session.consumer,
                    max_messages=min(self.credits.amount, _DELIVERY_MESSAGES_MAX),
                    max_bytes=_DELIVERY_BYTES_MAX,
                    wait_ms=_WAIT_MS,
                    visibility_timeout_ms=self._visibility_timeout_ms,
                )
                if self._checked_at != self._services.authorizer.version:
                    try:
                        await self._check()
                    except AccessError:
                        await give_back_leases(self._services.queues, self._group, leases)
                        raise
                readable, unreadable, left = await unpack_beside(leases, _DELIVERY_BYTES_MAX)
                await give_back(self._services.queues, self._group, left)
                if readable:
                    messages = await message_views(readable)
                    self.credits.spend(len(messages))
                    await self._session.deliver(self, messages, leases)
                await reject_unreadable(self._services.queues, self._group, unreadable)
            except PenstockError as error:
                if not await self._outlast(error):
                    return
            except Exception:
                await self._fail()
                return


class StreamSubscription(Subscription):
    """Messages of partitions from a place on."""

    def __init__(
        self,
        services: Services,
        session: Subscriber,
        name: str,
        topic: str,
        amount: int,
        places: Sequence[tuple[int, Start]],
    ) -> None:
        super().__init__(services, session, name, topic, amount)
        self._places = places

    def _work(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self._read(index, start) for index, start in self._places)

    async def _read(self, index: int, start: Start) -> None:
        position = start
        while True:
            await self.credits.wait()
            try:
                await self._session.wait_to_read()
                await self._check()
                result = await read_messages(
                    self._services.ports,
                    self.topic,
                    index,
                    position,
                    limit=min(self.credits.amount, _DELIVERY_MESSAGES_MAX),
                    wait_ms=_WAIT_MS,
                    max_bytes=_DELIVERY_BYTES_MAX,
                )
                if self._checked_at != self._services.authorizer.version:
                    await self._check()
                # Other partitions may have used up credits meanwhile; what is left over is read again.
                taken = result.messages[: max(self.credits.amount, 0)]
                is_whole = len(taken) == len(result.messages)
                if taken:
                    self.credits.spend(len(taken))
                    messages = await show_beside(taken, partial(self._views, index, taken))
                    await self._session.deliver(self, messages, ())
                if is_whole:
                    position = result.next_offset
                elif taken:
                    position = taken[-1].offset + 1
            except PenstockError as error:
                if not await self._outlast(error):
                    return
            except Exception:
                await self._fail()
                return

    def _views(self, index: int, records: Sequence[Record]) -> list[DeliveredMessage]:
        return [DeliveredMessage(topic=self.topic, partition=index, **asdict(view_of(record))) for record in records]
