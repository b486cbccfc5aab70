"""Background tasks that must not end: what goes wrong in one is logged, counted, told, and the task begins anew.

An unexpected exception would otherwise end the task in silence, and what it did (syncs, retention, copying)
would not be done any more by a node that says it is ready. What a caller waits for is told to that caller instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from penstock.clock import Clock
from penstock.errors import PenstockError

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 1.0  # before a task that failed begins anew
_RECENT_SECONDS: Final = 60.0  # for so long after it failed last a task is a trouble of the node


class Supervision:
    """The background tasks of a node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed_at: dict[str, tuple[float, str]] = {}
        self.failures: Counter[str] = Counter()  # by task, since the node started

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run ``work`` until it returns or is cancelled, again and again if it fails."""
        return asyncio.get_running_loop().create_task(self._keep(name, work), name=f"penstock {name}")

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception as error:
                self.note(name, error)
                await asyncio.sleep(_PAUSE_SECONDS)
                log.info("The background task %r begins anew.", name)
            else:
                return

    def watch(self, name: str, task: asyncio.Future[Any]) -> None:
        """Note it if a task that is done once, and that no caller waits for, fails."""
        task.add_done_callback(partial(self._on_done, name))

    def _on_done(self, name: str, task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.note(name, error)

    def note_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What the event loop tells where no caller is left to hear of it: a bug in a timer, or in a forgotten task.

        A connection that breaks is the world's doing, and no trouble of the node.
        """
        error = context.get("exception")
        if error is None or isinstance(error, (OSError, PenstockError)):
            loop.default_exception_handler(context)
        else:
            self.note("event loop", error)

    def note(self, name: str, error: BaseException) -> None:
        """Something in the background met a bug."""
        self.failures[name] += 1
        self._failed_at[name] = (self._clock.monotonic(), repr(error))
        log.error("The background task %r failed.", name, exc_info=error)

    def troubles(self) -> list[tuple[str, str]]:
        """The tasks that failed lately, and by what."""
        since = self._clock.monotonic() - _RECENT_SECONDS
        return [(name, why) for name, (at, why) in sorted(self._failed_at.items()) if at >= since]
