"""The time that schedules go by: the time of day of the node that leads, corrections of its clock included.

A schedule is for a moment of the day, so a clock that is set right counts at once: forwards, what lies between is due;
backwards by more than a second, everything is sorted anew, and nothing is early by the clock as it shows now. Smaller
steps back, as time servers make them, are waited out.
"""

from __future__ import annotations

from typing import Final

from penstock.clock import Clock

STEP_BACK_MS: Final = 1_000


class DayClock:
    """The wall clock, which stands still rather than goes back a little."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shown_ms = clock.now_ms()

    def now_ms(self) -> int:
        now_ms = self._clock.now_ms()
        if now_ms > self._shown_ms or self._shown_ms - now_ms > STEP_BACK_MS:
            self._shown_ms = now_ms
        return self._shown_ms
