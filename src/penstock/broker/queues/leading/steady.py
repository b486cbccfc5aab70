"""A clock for leases: it shows the time of day, and never jumps while a node leads."""

from __future__ import annotations

from penstock.clock import Clock


class SteadyClock:
    """Reads the wall clock once, and counts on from there. Whoever leads next takes a new one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.now_ms()
        self._began = clock.monotonic()

    def now_ms(self) -> int:
        return self._began_ms + int((self._clock.monotonic() - self._began) * 1000)
