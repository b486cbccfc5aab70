"""The clocks that machines go by, and the alarm that wakes a shard at its next deadline.

Each feature needs another notion of time, and none of them may be surprised by it: sessions must not end because this
node stood still, leases must not jump with the wall clock, and schedules must follow it when it is set right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

from penstock.clock import Clock

TICK_SECONDS: Final = 0.2
STEP_BACK_MS: Final = 1_000
_GAP_MAX_MS: Final = 1_000
_FAR_MS: Final = 3_600_000  # alarms are not set further ahead than this


class PatientClock:
    """Time for sessions, rounds and transactions. It never jumps, and stands still while this node does: after a
    minute of standstill, no member's heartbeat is a minute late.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ticked_at = clock.monotonic()
        self._ticked_ms = 0.0

    def now_ms(self) -> int:
        return int(self._reach(self._clock.monotonic()))

    def tick(self) -> None:
        """To be called several times a second; a longer gap counts as a second."""
        now = self._clock.monotonic()
        self._ticked_ms = self._reach(now)
        self._ticked_at = now

    async def run(self) -> None:
        """Tick for as long as the node runs."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()

    def _reach(self, now: float) -> float:
        return self._ticked_ms + min((now - self._ticked_at) * 1000, _GAP_MAX_MS)


class SteadyClock:
    """Time for leases: reads the wall clock once and counts on from there. Each leader takes a new one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.now_ms()
        self._began = clock.monotonic()

    def now_ms(self) -> int:
        return self._began_ms + int((self._clock.monotonic() - self._began) * 1000)


class DayClock:
    """Time for schedules: the wall clock of the leader, corrections included.

    A schedule is for a moment of the day, so a clock that is set right counts at once: forwards, what lies between is
    due; backwards by more than a second, everything is sorted anew, and nothing is early by the clock as it shows now.
    Smaller steps back, as time servers make them, are waited out.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shown_ms = clock.now_ms()

    def now_ms(self) -> int:
        now_ms = self._clock.now_ms()
        if now_ms > self._shown_ms or self._shown_ms - now_ms > STEP_BACK_MS:
            self._shown_ms = now_ms
        return self._shown_ms


class Alarm:
    """One timer of the event loop, always set for the earliest moment that was asked for."""

    def __init__(
        self, now_ms: Callable[[], int], ring: Callable[[], None], *, soon_ms: int = 0, far_ms: int = _FAR_MS
    ) -> None:
        """``ring`` is called at that moment; no sooner than ``soon_ms`` from now, so that what comes close together is
        done together, and after ``far_ms`` at the latest: the clock may have been set.
        """
        self._now_ms = now_ms
        self._ring = ring
        self._soon_ms = soon_ms
        self._far_ms = far_ms
        self._at_ms: float = inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at_ms: float) -> None:
        """Ring at that moment, unless the alarm is set for an earlier one."""
        if at_ms >= self._at_ms:
            return
        self.cancel()
        self._at_ms = at_ms
        away_ms = min(max(at_ms - self._now_ms(), self._soon_ms), self._far_ms)
        self._timer = asyncio.get_running_loop().call_later(away_ms / 1000, self._on_timer)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at_ms = inf

    def _on_timer(self) -> None:
        self._timer = None
        self._at_ms = inf
        self._ring()
