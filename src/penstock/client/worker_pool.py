"""A worker at work: the pool that speaks to the cluster, and the executor that runs the handlers.

The pool receives, renews leases and settles outcomes, in an event loop of its own thread. It *holds* messages from when
they are received until the queue knows what became of them, and renews their leases meanwhile. Handlers run elsewhere,
in the program's own event loop or in threads, so a handler that blocks delays neither renewals nor acks. Executors take
messages from a deque that any thread may use, and report each outcome in one call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

from penstock.api.limits import RECEIVE_MAX
from penstock.client.leases import LeasedMessage, Refused
from penstock.client.queue import QueueCalls
from penstock.client.transport import Backoff
from penstock.client.values import Duration, seconds_of
from penstock.errors import PenstockError, UnknownTopic

log = logging.getLogger(__name__)

SettleVerb = Literal["ack", "nack", "reject", "release"]
Handler = Callable[[Any], Any]


class HandlerOutcome(NamedTuple):
    """What the handler did with messages, and so how to settle them."""

    messages: Sequence[LeasedMessage]
    verb: SettleVerb
    delay: float | None = None
    reason: str = ""


class WorkSource(Protocol):
    """Where messages come from and outcomes go. Any thread may call both."""

    def take(self) -> Sequence[LeasedMessage]:
        """The next messages for one call of the handler; empty if there are none."""

    def report(self, outcome: HandlerOutcome) -> None: ...


class Executor(Protocol):
    def start(self) -> None: ...
    def wake(self) -> None:
        """There are messages to take. Any thread may call this."""

    def abandon(self) -> None:
        """Stop running handlers as far as possible, and take no more messages."""

    async def join(self) -> None:
        """Abandon, and return when no handler runs."""


class Reject(Exception):
    """Raised by a handler: the message can never be handled. It goes to the dead letters at once, with this reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Exception):
    """Raised by a handler: deliver the message again after ``delay``, or after the group's backoff."""

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = None if delay is None else seconds_of(delay, "delay")
        self.reason = reason


def reason_of(error: BaseException) -> str:
    """A failure in one line, for the message's history: the type of the error and its first line."""
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def failure_of(messages: Sequence[LeasedMessage], error: BaseException) -> HandlerOutcome:
    """How to settle messages whose handler raised."""
    if isinstance(error, Reject):
        return HandlerOutcome(messages, "reject", reason=error.reason or "rejected by the handler")
    if isinstance(error, Retry):
        return HandlerOutcome(messages, "nack", error.delay, error.reason or "the handler asked for a retry")
    if isinstance(error, asyncio.CancelledError):
        return HandlerOutcome(messages, "release")
    return HandlerOutcome(messages, "nack", None, reason_of(error))


def _log_failure(outcome: HandlerOutcome, error: BaseException) -> None:
    if not isinstance(error, Reject | Retry | asyncio.CancelledError):
        first = outcome.messages[0]
        others = f" and {len(outcome.messages) - 1} more" if len(outcome.messages) > 1 else ""
        log.warning("The handler failed for %r%s: %s", first, others, outcome.reason, exc_info=error)


class TaskExecutor:
    """Runs an async handler in the event loop that it was made in, up to ``count`` calls at a time."""

    def __init__(
        self, work: WorkSource, handler: Callable[[Any], Awaitable[Any]], count: int, *, is_batch: bool
    ) -> None:
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
                self._work.report(HandlerOutcome(messages, "ack"))

    def abandon(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def join(self) -> None:
        self._cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


_JOIN_SECONDS: Final = 0.05


class ThreadExecutor:
    """Runs a sync handler in ``count`` threads of its own."""

    def __init__(self, work: WorkSource, handler: Handler, count: int, *, is_batch: bool, name: str) -> None:
        self._work = work
        self._handler = handler
        self._is_batch = is_batch
        self._changed = threading.Condition()
        self._is_over = False
        # Daemons: a handler that never ends must not keep the process alive.
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
                self._work.report(HandlerOutcome(messages, "ack"))

    def abandon(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    async def join(self) -> None:
        """Threads that still run a handler cannot be stopped: they end with the handler, or with the process."""
        self.abandon()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, _JOIN_SECONDS)


_POLL_SECONDS: Final = 2.0  # also how long a stop may wait for a receive in flight
_RENEWALS: Final = 3  # per visibility timeout
_GIVE_BACK_SECONDS: Final = 1.0  # for cancelled handlers
_PROGRESS_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How a worker runs; see `worker`."""

    concurrency: int
    prefetch: int
    batch: int
    visibility_timeout_s: float
    stop_timeout_s: float

    @property
    def capacity(self) -> int:
        """How many messages to hold at most."""
        return min(self.concurrency * self.batch + self.prefetch, RECEIVE_MAX)


class WorkerPool:
    """Receives messages for one worker's executor, and settles what its handlers did."""

    def __init__(self, queue: QueueCalls[Any], config: WorkerConfig) -> None:
        self._queue = queue
        self._config = config
        self._executor: Executor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: dict[LeasedMessage, None] = {}
        self._ready: deque[LeasedMessage] = deque()
        self._outcomes: deque[HandlerOutcome] = deque()
        self._has_room = asyncio.Event()
        self._has_outcomes = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._stop_requested = False
        self._is_woken = False  # the loop will look at the outcomes
        self.done = 0
        self.failed = 0
        self.lost = 0

    def __repr__(self) -> str:
        return f"worker of {self._queue.topic}, group {self._queue.group}"

    # -- for the executor, in any thread ------------------------------------------------------------------------------

    def take(self) -> Sequence[LeasedMessage]:
        return () if self._stop_requested else self._pop(self._config.batch)

    def report(self, outcome: HandlerOutcome) -> None:
        self._outcomes.append(outcome)
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._has_outcomes.set)

    def stop(self) -> None:
        """Finish what runs, give back the rest, and end."""
        self._stop_requested = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_stopping.set)

    # -- in its own loop ----------------------------------------------------------------------------------------------

    async def run(self, executor: Executor) -> None:
        """WorkSource until `stop` is called, or the cluster refuses for good."""
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        if self._stop_requested:
            self._is_stopping.set()
        log.info("%s started: %d at a time.", self, self._config.concurrency)
        tasks = [asyncio.create_task(work) for work in (self._settle(), self._renew(), self._log_progress())]
        try:
            await self._receive()
            await self._finish()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            log.info("%s stopped: %d done, %d failed.", self, self.done, self.failed)

    async def _receive(self) -> None:
        backoff = Backoff()
        config = self._config
        while not self._is_stopping.is_set():
            room = config.capacity - len(self._held)
            # Receiving a few messages while many wait would only cost time.
            if room < max(config.capacity // 2, 1) and (self._ready or room < 1):
                self._has_room.clear()
                await self._first_of(self._has_room, self._is_stopping)
                continue
            try:
                messages = await self._queue.receive(
                    room, wait=_POLL_SECONDS, visibility_timeout=config.visibility_timeout_s
                )
            except PenstockError as error:
                if not error.retriable and not isinstance(error, UnknownTopic):
                    raise
                log.warning("%s could not receive: %s", self, error.message)
                await self._first_of(self._is_stopping, timeout_s=backoff.next())
                continue
            backoff.reset()
            if messages:
                self._held.update(dict.fromkeys(messages))
                self._ready.extend(messages)
                assert self._executor is not None
                self._executor.wake()

    async def _finish(self) -> None:
        """Give back what no handler has begun, and wait for running handlers."""
        unseen = self._pop(self._config.capacity)
        if unseen:
            self.report(HandlerOutcome(unseen, "release"))
        assert self._executor is not None
        try:
            async with asyncio.timeout(self._config.stop_timeout_s):
                await self._empty()
        except TimeoutError:
            log.warning("%s: the handlers of %d messages did not end in time.", self, len(self._held))
            self._executor.abandon()
            try:
                async with asyncio.timeout(_GIVE_BACK_SECONDS):
                    await self._empty()
            except TimeoutError:
                log.warning("%s leaves %d messages, which will be delivered again.", self, len(self._held))

    def _pop(self, count: int) -> list[LeasedMessage]:
        """Messages that no handler has begun. The executor's threads and the loop may both call this."""
        taken: list[LeasedMessage] = []
        try:
            while len(taken) < count:
                message = self._ready.popleft()
                if message in self._held:  # otherwise its lease was lost while it waited
                    taken.append(message)
        except IndexError:
            pass
        return taken

    async def _empty(self) -> None:
        while self._held:
            self._has_room.clear()
            await self._has_room.wait()

    async def _settle(self) -> None:
        """Settle outcomes. Those that come during a call go together in the next."""
        backoff = Backoff()
        while True:
            await self._has_outcomes.wait()
            self._has_outcomes.clear()
            self._is_woken = False
            outcomes = [self._outcomes.popleft() for _ in range(len(self._outcomes))]
            alike: dict[tuple[SettleVerb, float | None, str], list[LeasedMessage]] = {}
            for messages, verb, delay, reason in outcomes:
                alike.setdefault((verb, delay, reason), []).extend(messages)
            for (verb, delay, reason), members in alike.items():
                try:
                    refused = await self._call(verb, members, delay, reason)
                except PenstockError as error:
                    log.warning("%s could not %s %d messages yet: %s", self, verb, len(members), error.message)
                    self._outcomes.append(HandlerOutcome(members, verb, delay, reason))
                    await asyncio.sleep(backoff.next())
                    self._has_outcomes.set()
                    continue
                backoff.reset()
                self._count(verb, len(members), refused)
                self._drop(members)

    async def _call(
        self, verb: SettleVerb, messages: Sequence[LeasedMessage], delay: float | None, reason: str
    ) -> Sequence[Refused]:
        held = [message for message in messages if message in self._held]
        if verb == "ack":
            return await self._queue.ack(messages)
        if verb == "nack":
            return await self._queue.nack(held, delay=delay, reason=reason)
        if verb == "reject":
            return await self._queue.reject(held, reason=reason)
        return await self._queue.release(held)

    def _count(self, verb: str, count: int, refused: Sequence[Refused]) -> None:
        if verb == "ack":
            self.done += count - len(refused)
        elif verb in {"nack", "reject"}:
            self.failed += count
        for message, fate in refused:
            self.lost += 1
            log.warning("%s was too late to %s %r: %s.", self, verb, message, fate)

    async def _renew(self) -> None:
        """Renew every lease until its message is settled."""
        config = self._config
        while True:
            await asyncio.sleep(config.visibility_timeout_s / _RENEWALS)
            held = list(self._held)
            if not held:
                continue
            try:
                refused = await self._queue.extend(held, config.visibility_timeout_s)
            except PenstockError as error:
                log.warning("%s could not renew %d leases: %s", self, len(held), error.message)
                continue
            over = [each for each in refused if each.message in self._held and each.fate != "already_acked"]
            for message, fate in over:
                log.warning("%s has lost the lease of %r: %s.", self, message, fate)
            self._drop([message for message, _ in refused])

    async def _log_progress(self) -> None:
        logged = 0
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            if self.done + self.failed != logged:
                logged = self.done + self.failed
                log.info("%s: %d done, %d failed, %d held.", self, self.done, self.failed, len(self._held))

    def _drop(self, messages: Sequence[LeasedMessage]) -> None:
        for message in messages:
            self._held.pop(message, None)
        self._has_room.set()

    async def _first_of(self, *events: asyncio.Event, timeout_s: float | None = None) -> None:
        waits = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
