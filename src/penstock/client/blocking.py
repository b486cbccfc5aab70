"""What the generated sync client (`client/generated`, written by `./dev sync-client`) is built on.

Each sync object stands before an async one and runs its coroutines through the client's `Portal`. Here is what cannot
be generated from the async signatures: how a client starts and ends, and `send`, which any thread may call and which
must not cost a switch to the other thread for each message.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

from penstock.client.batching import PendingMessage
from penstock.client.client import AsyncClient
from penstock.client.messages import Published
from penstock.client.portal import Portal
from penstock.client.schedules import delivery_time
from penstock.client.values import (
    DeliverAt,
    Duration,
    GivenHeaders,
    Key,
    Moment,
    Outgoing,
    Value,
    outgoing,
)
from penstock.errors import ClientClosed, PenstockError

_INBOX_MAX: Final = 10_000  # messages on their way from other threads into the loop

Async = TypeVar("Async")


class Blocking(Generic[Async]):
    """A sync object before an async one."""

    def __init__(self, portal: Portal, made: Async) -> None:
        self._portal = portal
        self._async = made

    def __repr__(self) -> str:
        name = type(self._async).__name__
        return repr(self._async).replace(name, type(self).__name__, 1)


class BlockingClient(Blocking[AsyncClient]):
    """The hand-written part of `Client`."""

    def __init__(self, made: AsyncClient) -> None:
        super().__init__(Portal(), made)
        self._inbox = _Inbox(made, self._portal)

    def send(
        self,
        topic: str,
        value: Value,
        *,
        key: Key = None,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: Moment = None,
        priority: str | None = None,
        delay: Duration | None = None,
        deliver_at: DeliverAt = None,
    ) -> Future[Published]:
        """Accept one message and return as soon as the buffer has room for it; the future is done when it is safe.

        Messages sent shortly after one another share a batch: sending many is much faster than one by one.
        ``delay`` and ``deliver_at`` are as in `publish`.
        """
        message = outgoing(value, key, headers, timestamp, priority)
        when = delivery_time(delay, deliver_at)
        if when is not None:
            future: Future[Published] = Future()
            self._portal.call(self._async._delayed.send(topic, message, partition, when, future))
            return future
        return self._inbox.put(topic, message, partition)

    def flush(self) -> None:
        """Return when everything that was sent before, by any thread, is safe or refused."""
        self._portal.call(self._inbox.empty())
        self._portal.call(self._async.flush())

    def close(self) -> None:
        """Leave groups, send what is left, and close all connections."""
        if not self._portal.is_running:
            return
        try:
            self._portal.call(self._inbox.empty())
            self._portal.call(self._async.close())
        finally:
            self._portal.stop()


class _Inbox:
    """Messages on their way from other threads to the publisher. The loop is woken once for many of them."""

    def __init__(self, client: AsyncClient, portal: Portal) -> None:
        self._client = client
        self._portal = portal
        self._waiting: deque[tuple[str, Outgoing, int | None, Future[Published]]] = deque()
        self._changed = threading.Condition()
        self._is_draining = False

    def put(self, topic: str, message: Outgoing, partition: int | None) -> Future[Published]:
        future: Future[Published] = Future()
        with self._changed:
            while len(self._waiting) >= _INBOX_MAX and self._portal.is_running:
                self._changed.wait(1.0)
            if not self._portal.is_running:
                raise ClientClosed()
            self._waiting.append((topic, message, partition, future))
            if self._is_draining:
                return future
            self._is_draining = True
        self._portal.submit(self._drain())
        return future

    async def _drain(self) -> None:
        """Hand over in order. The publisher's bound slows this down, and this slows down the threads that send."""
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_draining = False
                    self._changed.notify_all()
                    return
                topic, message, partition, future = self._waiting.popleft()
                if len(self._waiting) == _INBOX_MAX // 2:
                    self._changed.notify_all()
            pending = PendingMessage(message, future)
            try:
                await self._client._publisher.send(topic, message, partition, pending, is_urgent=False)
            except PenstockError as error:
                pending.fail(error)

    async def empty(self) -> None:
        """Return when everything was handed over."""
        while self._waiting or self._is_draining:  # noqa: ASYNC110  # what changes this are other threads
            await asyncio.sleep(0.001)
