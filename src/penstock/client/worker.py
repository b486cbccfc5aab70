"""Workers: functions that handle the messages of a queue, and the app that runs them until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from penstock.api.limits import DEFAULT_GROUP
from penstock.client.client import AsyncClient
from penstock.client.generated.sync import Queue
from penstock.client.leases import AsyncQueueMessage, Refused
from penstock.client.portal import Portal
from penstock.client.queue import QueueCalls
from penstock.client.values import Duration, seconds_of
from penstock.client.worker_pool import Executor, TaskExecutor, ThreadExecutor, WorkerConfig, WorkerPool
from penstock.errors import InvalidRequest
from penstock.model import check_topic_name

Function = TypeVar("Function", bound=Callable[..., Any])

_VISIBILITY_SECONDS_MIN: Final = 0.3


class Worker(Generic[Function]):
    """A function that handles the messages of a queue. Calling it calls the function, which is handy in tests."""

    def __init__(self, function: Function, topic: str, group: str, config: WorkerConfig, *, is_batch: bool) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.topic = topic
        self.group = group
        self.config = config
        self.is_batch = is_batch

    @property
    def name(self) -> str:
        name: str = getattr(self.function, "__name__", type(self.function).__name__)
        return name

    @property
    def is_async(self) -> bool:
        function: Any = self.function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def run(self, *urls: str) -> None:
        """Work until SIGTERM or Ctrl-C."""
        App(*urls, workers=[self]).run()

    def __repr__(self) -> str:
        return f"<Worker {self.name} of {self.topic}, group {self.group}>"


def worker(
    topic: str,
    *,
    group: str = DEFAULT_GROUP,
    concurrency: int = 8,
    prefetch: int | None = None,
    batch: int | None = None,
    visibility_timeout: Duration = 30.0,
    stop_timeout: Duration = 30.0,
) -> Callable[[Function], Worker[Function]]:
    """Make a function a worker: ``@penstock.worker("orders", group="billing")``.

    The function is called with one message or, with ``batch``, with a list of up to that many. An async function runs
    in the program's event loop, any other in a thread. When it returns, the messages are acked. If it raises, they are
    delivered again after the group's backoff, with the error as the reason; `Retry` says when, and `Reject` sends them
    to the dead letters.

    - ``concurrency``: how many calls may run at a time.
    - ``prefetch``: how many messages to have waiting beside those being handled; default: as many again.
    - ``visibility_timeout``: how soon another worker gets a message if this process dies. While it lives, it renews
      leases, however long the function takes.
    - ``stop_timeout``: how long a stop waits for running functions.
    """
    if concurrency < 1 or (prefetch is not None and prefetch < 0) or (batch is not None and batch < 1):
        raise InvalidRequest("concurrency and batch must be 1 or more, and prefetch 0 or more.")
    visibility_timeout_s = seconds_of(visibility_timeout, "visibility_timeout")
    if visibility_timeout_s < _VISIBILITY_SECONDS_MIN:
        raise InvalidRequest(
            f"visibility_timeout must be {_VISIBILITY_SECONDS_MIN:g} s or more, to leave time for renewals."
        )
    size = batch or 1
    config = WorkerConfig(
        concurrency=concurrency,
        prefetch=concurrency * size if prefetch is None else prefetch,
        batch=size,
        visibility_timeout_s=visibility_timeout_s,
        stop_timeout_s=seconds_of(stop_timeout, "stop_timeout"),
    )
    check_topic_name(topic)

    def decorate(function: Function) -> Worker[Function]:
        return Worker(function, topic, group, config, is_batch=batch is not None)

    return decorate


log = logging.getLogger(__name__)


class App:
    """Workers that run together in one process, and the cluster they work for.

    Give URLs of nodes, as for `AsyncClient`. Add workers with the decorator `worker`, or pass them here.
    """

    def __init__(self, *urls: str, workers: Iterable[Worker[Any]] = (), timeout: Duration = 30.0) -> None:
        self.urls = urls
        self.workers = list(workers)
        self._timeout = seconds_of(timeout, "timeout")
        self._pools: list[WorkerPool] = []
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
        """Add a function to this app; takes the arguments of `penstock.worker`."""
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
        """A copy of this app with another concurrency for all workers."""
        if concurrency < 1:
            raise InvalidRequest("concurrency must be 1 or more.")
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
        """Work until SIGTERM or Ctrl-C; a second one stops it at once."""
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
                # Outside the main thread, signals belong to the program.
                with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                    loop.add_signal_handler(number, stop)
            with contextlib.suppress(asyncio.CancelledError):
                await serving
        finally:
            for number in signals:
                with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                    loop.remove_signal_handler(number)

    async def serve(self) -> None:
        """Work until `stop` is called; async handlers run in this event loop.

        Calls to the cluster run in a thread of their own, so a handler that blocks this loop loses no lease.
        """
        if not self.workers:
            raise InvalidRequest("The app has no workers; add one with @app.worker(topic).")
        portal = Portal("penstock-worker")
        try:
            client = AsyncClient(*self.urls, timeout=self._timeout)
            started = [self._prepare(each, client, portal) for each in self.workers]
            self._pools = [pool for pool, _ in started]
            if self._is_stopping:
                self.stop()
            for _, executor in started:
                executor.start()
            running: list[Future[None]] = [portal.submit(pool.run(executor)) for pool, executor in started]
            try:
                await self._until_over(running)
            finally:
                for _, executor in started:
                    await executor.join()
                await asyncio.wrap_future(portal.submit(client.close()))
        finally:
            await asyncio.to_thread(portal.stop)

    async def _until_over(self, running: list[Future[None]]) -> None:
        """When one pool fails, stop the others gracefully and raise its error."""
        waits = [asyncio.wrap_future(each) for each in running]
        done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_EXCEPTION)
        if left:
            self.stop()
            await asyncio.wait(left)
        for each in [*done, *left]:
            each.result()

    def stop(self) -> None:
        """Finish running handlers, give back the other messages, and end. Any thread may call this."""
        self._is_stopping = True
        for pool in self._pools:
            pool.stop()

    def _prepare(self, each: Worker[Any], client: AsyncClient, portal: Portal) -> tuple[WorkerPool, Executor]:
        given = client.queue(each.topic, each.group)
        queue: QueueCalls[Any]
        if each.is_async:
            queue = given._with_messages(AsyncQueueMessage, _OtherLoop(given, portal))
        else:
            queue = Queue(portal, given)._async
        pool = WorkerPool(queue, each.config)
        count = each.config.concurrency
        executor: Executor
        if each.is_async:
            executor = TaskExecutor(pool, each.function, count, is_batch=each.is_batch)
        else:
            executor = ThreadExecutor(pool, each.function, count, is_batch=each.is_batch, name=each.name)
        return pool, executor


class _OtherLoop:
    """A queue for an async handler's messages: its calls run in the loop that speaks to the cluster."""

    def __init__(self, queue: QueueCalls[Any], portal: Portal) -> None:
        self._queue = queue
        self._portal = portal
        self.group = queue.group

    def __getattr__(self, verb: str) -> Callable[..., asyncio.Future[list[Refused]]]:
        call = getattr(self._queue, verb)
        return lambda *args, **options: asyncio.wrap_future(self._portal.submit(call(*args, **options)))
