"""Who runs the handlers: tasks of the program's own event loop, or threads. Never the loop that speaks to the cluster.

So a handler that takes long, or holds up its thread or its loop, holds up neither renewals nor acks. Both kinds take
messages from one deque, which any thread may use, and tell of each outcome in one call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from penstock.client.leases import LeasedMessage
from penstock.client.signals import Reject, Retry, reason_of

log = logging.getLogger(__name__)

Verb = Literal["ack", "nack", "reject", "release"]
Handler = Callable[[Any], Any]


class Outcome(NamedTuple):
    """What became of messages, and so what is to be told to the queue."""

    messages: Sequence[LeasedMessage]
    verb: Verb
    delay: float | None = None
    reason: str = ""


class Work(Protocol):
    """Where messages come from and outcomes go; both may be called by any thread."""

    def take(self) -> Sequence[LeasedMessage]:
        """The next messages for one call of the handler; empty if there are none."""

    def report(self, outcome: Outcome) -> None: ...


class Hands(Protocol):
    def start(self) -> None: ...
    def wake(self) -> None:
        """There is something to take, for any thread to call."""

    def abandon(self) -> None:
        """Stop what runs as far as that is possible, and take nothing more."""

    async def join(self) -> None:
        """Return when nothing runs any more; after `abandon`."""


def failure_of(messages: Sequence[LeasedMessage], error: BaseException) -> Outcome:
    """What to tell the queue of a handler that raised."""
    if isinstance(error, Reject):
        return Outcome(messages, "reject", reason=error.reason or "rejected by the handler")
    if isinstance(error, Retry):
        return Outcome(messages, "nack", error.delay, error.reason or "the handler asked for another try")
    if isinstance(error, asyncio.CancelledError):
        return Outcome(messages, "release")
    return Outcome(messages, "nack", None, reason_of(error))


def _log_failure(outcome: Outcome, error: BaseException) -> None:
    if not isinstance(error, Reject | Retry | asyncio.CancelledError):
        first = outcome.messages[0]
        others = f" and {len(outcome.messages) - 1} more" if len(outcome.messages) > 1 else ""
        log.warning("The handler failed for %r%s: %s", first, others, outcome.reason, exc_info=error)


class TaskHands:
    """Runs an async handler in the loop that it was made in, so many calls at a time."""

    def __init__(self, work: Work, handler: Callable[[Any], Awaitable[Any]], count: int, *, is_batch: bool) -> None:
        self._work = work
        self._handler = handler
        self._count = count
        self._is_batch = is_batch
        self._loop = asyncio.get_running_loop()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [self._loop.create_task(self._run()) for _ in range(self._count)]

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        while self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)

    async def _run(self) -> None:
        while True:
            messages = self._work.take()
            if not messages:
                waiting = self._loop.create_future()
                self._idle.append(waiting)
                await waiting
                continue
            try:
                await self._handler(messages if self._is_batch else messages[0])
            except (Exception, asyncio.CancelledError) as error:
                outcome = failure_of(messages, error)
                _log_failure(outcome, error)
                self._work.report(outcome)
                if isinstance(error, asyncio.CancelledError):
                    raise
            else:
                self._work.report(Outcome(messages, "ack"))

    def abandon(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def join(self) -> None:
        self._cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


_JOIN_SECONDS: Final = 0.05


class ThreadHands:
    """Runs a sync handler in threads of its own, one for each call at a time."""

    def __init__(self, work: Work, handler: Handler, count: int, *, is_batch: bool, name: str) -> None:
        self._work = work
        self._handler = handler
        self._is_batch = is_batch
        self._changed = threading.Condition()
        self._is_over = False
        # They do not keep the process alive: a handler that never ends must not either.
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                messages = self._work.take()
                while not messages and not self._is_over:
                    self._changed.wait()
                    messages = self._work.take()
            if not messages:
                return
            try:
                self._handler(messages if self._is_batch else messages[0])
            except Exception as error:
                outcome = failure_of(messages, error)
                _log_failure(outcome, error)
                self._work.report(outcome)
            else:
                self._work.report(Outcome(messages, "ack"))

    def abandon(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    async def join(self) -> None:
        """Threads that still run a handler cannot be stopped; they end with it, or with the process."""
        self.abandon()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, _JOIN_SECONDS)
