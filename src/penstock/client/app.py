"""An app: workers that run together in one process, from their start to a stop in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from penstock.client.blocking import Queue
from penstock.client.client import AsyncClient
from penstock.client.crew import Crew
from penstock.client.hands import Hands, TaskHands, ThreadHands
from penstock.client.leases import AsyncQueueMessage, LeasedMessage, QueueMessage, Refused
from penstock.client.portal import Portal
from penstock.client.queue import DEFAULT_GROUP, QueueCalls
from penstock.client.values import Duration, seconds_of
from penstock.client.worker import Worker, worker
from penstock.errors import InvalidRequest

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


class App:
    """Workers and the cluster they work for.

    Give URLs of nodes, as for `AsyncClient`. Add workers with `worker`, as a decorator, or hand them over.
    """

    def __init__(self, *urls: str, workers: Iterable[Worker[Any]] = (), timeout: Duration = 30.0) -> None:
        self.urls = urls
        self.workers = list(workers)
        self._timeout = seconds_of(timeout, "timeout")
        self._crews: list[Crew] = []
        self._is_stopping = False

    def worker(
        self,
        topic: str,
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int = 8,
        prefetch: int | None = None,
        batch: int | None = None,
        visibility_timeout: Duration = 30.0,
        stop_timeout: Duration = 30.0,
    ) -> Callable[[Function], Worker[Function]]:
        """Add a function to this app; takes what `penstock.worker` takes."""
        make = worker(
            topic,
            group=group,
            concurrency=concurrency,
            prefetch=prefetch,
            batch=batch,
            visibility_timeout=visibility_timeout,
            stop_timeout=stop_timeout,
        )

        def decorate(function: Function) -> Worker[Function]:
            made: Worker[Function] = make(function)
            self.workers.append(made)
            return made

        return decorate

    def with_concurrency(self, concurrency: int) -> App:
        """The same app with another concurrency for all its workers."""
        if concurrency < 1:
            raise InvalidRequest("concurrency is 1 or more.")
        changed = [
            Worker(
                each.function,
                each.topic,
                each.group,
                replace(each.config, concurrency=concurrency),
                is_batch=each.is_batch,
            )
            for each in self.workers
        ]
        return App(*self.urls, workers=changed, timeout=self._timeout)

    def run(self) -> None:
        """Work until the process is told to stop (SIGTERM, Ctrl-C); told twice, it stops at once."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.ensure_future(self.serve())

        def stop() -> None:
            if self._is_stopping:
                serving.cancel()
            self.stop()

        signals = (signal.SIGINT, signal.SIGTERM)
        try:
            for number in signals:
                # Where this is not the main thread, somebody else has the signals.
                with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                    loop.add_signal_handler(number, stop)
            with contextlib.suppress(asyncio.CancelledError):
                await serving
        finally:
            for number in signals:
                with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                    loop.remove_signal_handler(number)

    async def serve(self) -> None:
        """Work until `stop` is called, in the event loop that async handlers are to run in.

        All that speaks to the cluster is in a thread of its own, so a handler that blocks this loop loses no lease.
        """
        if not self.workers:
            raise InvalidRequest("The app has no workers; add one with @app.worker(topic).")
        portal = Portal("penstock-worker")
        try:
            client = AsyncClient(*self.urls, timeout=self._timeout)
            manned = [self._man(each, client, portal) for each in self.workers]
            self._crews = [crew for crew, _ in manned]
            if self._is_stopping:
                self.stop()
            for _, hands in manned:
                hands.start()
            running: list[Future[None]] = [portal.submit(crew.run(hands)) for crew, hands in manned]
            try:
                await self._until_over(running)
            finally:
                for _, hands in manned:
                    await hands.join()
                await asyncio.wrap_future(portal.submit(client.close()))
        finally:
            await asyncio.to_thread(portal.stop)

    async def _until_over(self, running: list[Future[None]]) -> None:
        """When one crew fails, the others stop in good order, and its error is raised."""
        waits = [asyncio.wrap_future(each) for each in running]
        done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_EXCEPTION)
        if left:
            self.stop()
            await asyncio.wait(left)
        for each in [*done, *left]:
            each.result()

    def stop(self) -> None:
        """Finish what runs, give back what was not begun, and end. Any thread may call it."""
        self._is_stopping = True
        for crew in self._crews:
            crew.stop()

    def _man(self, each: Worker[Any], client: AsyncClient, portal: Portal) -> tuple[Crew, Hands]:
        queue: QueueCalls[Any]
        transport = client._transport
        if each.is_async:
            queue = QueueCalls(transport, each.topic, each.group, AsyncQueueMessage)
            queue.front = _Bridge(queue, portal)
        else:
            front = Queue(portal, client, each.topic, each.group, "")
            queue = QueueCalls(transport, each.topic, each.group, QueueMessage, front=front)
        crew = Crew(queue, each.config)
        count = each.config.concurrency
        hands: Hands
        if each.is_async:
            hands = TaskHands(crew, each.function, count, is_batch=each.is_batch)
        else:
            hands = ThreadHands(crew, each.function, count, is_batch=each.is_batch, name=each.name)
        return crew, hands


class _Bridge:
    """The verbs of messages that an async handler has, from its loop to the one that speaks to the cluster."""

    def __init__(self, queue: QueueCalls[LeasedMessage], portal: Portal) -> None:
        self._queue = queue
        self._portal = portal
        self.group = queue.group

    async def ack(self, messages: Iterable[LeasedMessage]) -> list[Refused]:
        return await asyncio.wrap_future(self._portal.submit(self._queue.ack(messages)))

    async def nack(
        self, messages: Iterable[LeasedMessage], *, delay: Duration | None = None, reason: str = ""
    ) -> list[Refused]:
        return await asyncio.wrap_future(self._portal.submit(self._queue.nack(messages, delay=delay, reason=reason)))

    async def reject(self, messages: Iterable[LeasedMessage], *, reason: str = "") -> list[Refused]:
        return await asyncio.wrap_future(self._portal.submit(self._queue.reject(messages, reason=reason)))

    async def extend(
        self, messages: Iterable[LeasedMessage], visibility_timeout: Duration | None = None
    ) -> list[Refused]:
        return await asyncio.wrap_future(self._portal.submit(self._queue.extend(messages, visibility_timeout)))
