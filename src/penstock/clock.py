"""Time as a port, so that everything that waits or stamps can run on a virtual clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch; may jump."""

    def monotonic(self) -> float:
        """Seconds that never go back, for measuring and for deadlines."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
