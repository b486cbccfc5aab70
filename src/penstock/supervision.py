"""Background tasks that must not end: what goes wrong in one is logged, counted, told, and the task begins anew.

An exception that nobody expected would otherwise end the task in silence, and what it did (syncs, retention, copying)
would not be done any more by a node that says it is ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.clock import Clock

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
            else:
                return

    def note(self, name: str, error: BaseException) -> None:
        """Something in the background met a bug."""
        self.failures[name] += 1
        self._failed_at[name] = (self._clock.monotonic(), repr(error))
        log.error("The background task %r failed and begins anew.", name, exc_info=error)

    def troubles(self) -> list[tuple[str, str]]:
        """The tasks that failed lately, and by what."""
        since = self._clock.monotonic() - _RECENT_SECONDS
        return [(name, why) for name, (at, why) in sorted(self._failed_at.items()) if at >= since]
