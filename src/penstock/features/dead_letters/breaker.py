"""The flood breaker: a group is paused when too many of its messages fail, before all of them become dead letters.

One bad message is for the dead letters. If most fail, what is wrong is elsewhere: a database that is down, a release
with a bug. Then every retry is in vain, and a pause keeps the messages where they are until somebody has looked.

Each node counts what ended on the partitions that it leads. `Breaker` knows no clock; `Breakers` wires it to pausing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from penstock.clock import Clock
from penstock.consensus.queue_config import QueueSettings
from penstock.errors import PenstockError
from penstock.features.queues.core.state import QueueTally
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

_SLOTS: Final = 20  # a window moves on by this share of itself

Pause = Callable[[str, str, str], Awaitable[None]]  # topic, group, reason
Where = tuple[str, str]  # topic, group


class FailureFlood(NamedTuple):
    """Too many failures: how many of how many."""

    failed: int
    ended: int
    window_ms: int

    def reason(self, share: float) -> str:
        """What happened and what to do, for the operator who finds the group paused."""
        return (
            f"The breaker opened: {self.failed} of {self.ended} deliveries failed within {self.window_ms / 1000:g} s, "
            f"more than the share of {share:g} that queue.breaker.share allows. Nothing is lost. Mend the cause, then "
            "resume the group."
        )


class _Slot:
    """What ended within a part of the window."""

    __slots__ = ("failed", "succeeded", "until_ms")

    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms
        self.succeeded = 0
        self.failed = 0


class Breaker:
    """The deliveries of one group that ended within the last window."""

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque()
        self._succeeded = 0
        self._failed = 0

    def note(self, succeeded: int, failed: int, settings: QueueSettings, now_ms: int) -> FailureFlood | None:
        """Count what ended just now; what to pause for, if it is too much."""
        window_ms = settings.breaker_window_ms
        self._pass_time(now_ms, window_ms)
        slots = self._slots
        if not slots or slots[-1].until_ms <= now_ms:
            slots.append(_Slot(now_ms + max(window_ms // _SLOTS, 1)))
        slots[-1].succeeded += succeeded
        slots[-1].failed += failed
        self._succeeded += succeeded
        self._failed += failed
        ended = self._succeeded + self._failed
        is_flood = ended >= settings.breaker_min and self._failed > settings.breaker_share * ended
        return FailureFlood(self._failed, ended, window_ms) if is_flood and settings.breaker_share > 0 else None

    def _pass_time(self, now_ms: int, window_ms: int) -> None:
        """Forget what ended before the window."""
        slots = self._slots
        while slots and slots[0].until_ms <= now_ms - window_ms:
            slot = slots.popleft()
            self._succeeded -= slot.succeeded
            self._failed -= slot.failed


class Breakers:
    """The breakers of all groups that this node serves."""

    def __init__(self, clock: Clock, pause: Pause, supervision: Supervision) -> None:
        self._supervision = supervision
        self._clock = clock
        self._pause = pause
        self._breakers: dict[Where, Breaker] = {}
        self._tasks: dict[Where, asyncio.Task[None]] = {}
        self.opened: Counter[Where] = Counter()  # how often, by topic and group

    def note(self, topic: str, group: str, settings: QueueSettings, tally: QueueTally) -> None:
        """Count what became of deliveries. A group whose breaker opens is paused everywhere, soon."""
        where = (topic, group)
        if settings.breaker_share <= 0:
            self._breakers.pop(where, None)
            return
        if not (tally.acked or tally.failed) or where in self._tasks:
            return
        breaker = self._breakers.setdefault(where, Breaker())
        # Windows are measured, so this is no wall clock, which may jump.
        flood = breaker.note(tally.acked, tally.failed, settings, int(self._clock.monotonic() * 1000))
        if flood is not None:
            task = self._tasks[where] = asyncio.ensure_future(self._open(where, flood.reason(settings.breaker_share)))
            task.add_done_callback(lambda _: self._tasks.pop(where, None))
            self._supervision.watch("pausing queue groups", task)

    async def _open(self, where: Where, reason: str) -> None:
        try:
            await self._pause(*where, reason)
        except PenstockError as error:  # the counts stay, so the next failure tries again
            log.warning("Group %r of %s fails too often but cannot be paused: %s", where[1], where[0], error.message)
            return
        self.opened[where] += 1
        self.reset(*where)
        log.warning("Group %r of %s is paused. %s", where[1], where[0], reason)

    def reset(self, topic: str, group: str) -> None:
        """Begin to count anew, as when the group goes on or is forgotten."""
        self._breakers.pop((topic, group), None)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
