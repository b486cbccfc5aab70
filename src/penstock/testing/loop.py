"""An event loop on virtual time: what was planned for the same moment runs in the order in which it was planned.

Nothing here waits. When nothing is ready, time jumps to the next timer; when there is no timer either, nothing will
ever happen again, and the loop says so instead of hanging. What is meant for a thread runs on the loop after a random
delay, so that everything which could happen meanwhile does for some seed.

Every callback carries the `Life` of the process it belongs to in its context. A killed process runs nothing more:
its callbacks are put aside instead, unrun, and so are its tasks, whose ``finally`` blocks a real kill would not run
either. They are kept until the end, because letting go of them would run those blocks.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, Final

_EVENTS_AT_ONCE_MAX: Final = 200_000
_THREAD_DELAY_MAX_S: Final = 0.002


class SimulationHung(AssertionError):
    """Nothing is ready and nothing is planned, but the history is not over."""


class SimulationRanAway(AssertionError):
    """Callbacks keep on being planned for the same moment, or there are far too many of them."""


class Life:
    """A process, from its start until it ends or is killed. Whatever it plans happens only while it lives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_over = False
        self.held: list[asyncio.Handle] | None = None  # what waits while the process is stopped, as by SIGSTOP
        self.context = Context()
        self.context.run(current_life.set, self)

    def __repr__(self) -> str:
        return f"<Life {self.name}{', over' if self.is_over else ''}>"

    def end(self) -> None:
        self.is_over = True

    @property
    def is_paused(self) -> bool:
        return self.held is not None

    def pause(self) -> None:
        """Run nothing until `resume`; the world goes on."""
        if self.held is None:
            self.held = []

    def resume(self, loop: SimulatedLoop) -> None:
        if self.held is not None:
            held, self.held = self.held, None
            loop.run_again(held)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call as this process would, from anywhere."""
        return self.context.copy().run(function, *arguments)


current_life: ContextVar[Life | None] = ContextVar("current_life", default=None)


class SimulatedLoop(asyncio.BaseEventLoop):
    """A loop whose seconds cost nothing. Close it to end everything that was left unfinished on it."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self._now = 0.0
        self.events_run = 0
        self.thread_delay_max_s = _THREAD_DELAY_MAX_S
        self.failures: list[tuple[Life | None, str, BaseException | None]] = []
        self._scheduled: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._planned = 0
        self._put_aside: list[Any] = []
        self._events_now = 0
        self._is_over = False
        self.events_max: int | None = None
        self.set_exception_handler(SimulatedLoop._note_failure)

    def time(self) -> float:
        return self._now

    def leap(self, to_s: float) -> None:
        """Let it be later at once. What was planned for the time between comes now, once, as after a long sleep."""
        self._now = max(self._now, to_s)

    def run_again(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def keep(self, thing: object) -> None:
        """Hold on to the remains of a killed process until the end."""
        self._put_aside.append(thing)

    # -- planning -----------------------------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *arguments: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, arguments, self, context)
        if not self._is_over:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread only

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *arguments: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, arguments, self, context)
        self._planned += 1
        if not self._is_over:
            heapq.heappush(self._scheduled, (when, self._planned, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *arguments: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(delay, 0.0), callback, *arguments, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        del handle  # it is dropped when its time comes

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Run later on, all at once; the context is the caller's."""
        del executor
        future: asyncio.Future[Any] = self.create_future()
        self.call_later(self._random.random() * self.thread_delay_max_s, _work, future, function, arguments)
        return future

    # -- running ------------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        ready = self._ready
        if not ready:
            self._go_on()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            context = handle._context  # type: ignore[attr-defined]
            life = context.get(current_life)
            if life is not None and (life.is_over or life.held is not None):
                (self._put_aside if life.held is None else life.held).append(handle)
                continue
            self._events_now += 1
            handle._run()
            if self._stopping:  # type: ignore[attr-defined]
                break
        if self._events_now > _EVENTS_AT_ONCE_MAX:
            raise SimulationRanAway(f"{_EVENTS_AT_ONCE_MAX} events at {self._now:.3f} s, and no end; last: {handle!r}")

    def _go_on(self) -> None:
        """Let time pass until something is ready."""
        scheduled = self._scheduled
        self.events_run += self._events_now
        self._events_now = 0
        if self.events_max is not None and self.events_run > self.events_max:
            raise SimulationRanAway(f"{self.events_run} events by {self._now:.3f} s")
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)
        if not scheduled:
            raise SimulationHung(f"nothing will happen after {self._now:.3f} s")
        now = self._now = max(self._now, scheduled[0][0])
        while scheduled and scheduled[0][0] <= now:
            self._ready.append(heapq.heappop(scheduled)[2])

    @staticmethod
    def _note_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        assert isinstance(loop, SimulatedLoop)
        handle = context.get("handle")
        life = None if handle is None else handle._context.get(current_life)
        if not loop._is_over and not (life is not None and life.is_over):
            loop.failures.append((life, context["message"], context.get("exception")))

    def _write_to_self(self) -> None:
        return

    def _process_events(self, _: object) -> None:
        raise AssertionError("a simulated loop has no sockets")

    async def shutdown_asyncgens(self) -> None:
        return

    async def shutdown_default_executor(self) -> None:
        return

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End what is unfinished. From here on nothing that is planned will ever run."""
        if self._is_over:
            return
        self._is_over = True
        pending = [task for task in asyncio.all_tasks(self) if not task.done()]
        for task in pending:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        with _silence():
            for task in pending:
                coroutine = task.get_coro()
                try:
                    coroutine.close()
                except BaseException:  # the last words of a dead process
                    pass
        self._ready.clear()
        self._scheduled.clear()
        self._put_aside.clear()
        super().close()


def _work(future: asyncio.Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if future.cancelled():
        # A thread that has begun goes on, though no task waits for it any more.
        function(*arguments)
        return
    try:
        result = function(*arguments)
    except Exception as error:  # for the task that waits, as an executor does it
        future.set_exception(error)
    else:
        future.set_result(result)


@contextmanager
def _silence() -> Iterator[None]:
    """What is ended in the middle complains; that is not reported."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextmanager
def simulated_loop(random: Random) -> Iterator[SimulatedLoop]:
    """A loop for one history; everything that is left of it is ended at the end."""
    loop = SimulatedLoop(random)
    try:
        yield loop
    finally:
        loop.close()
        events._set_running_loop(None)


def detached() -> Context:
    """A context that belongs to no process."""
    context = copy_context()
    context.run(current_life.set, None)
    return context
