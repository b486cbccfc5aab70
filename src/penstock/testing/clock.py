"""A node's clock in simulation: its seconds are the loop's, its wall clock may be wrong and may jump."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final

_FIRST_MS: Final = 1_700_000_000_000


class SimulatedClock:
    """Virtual time as one node sees it. Set ``skew_ms`` to have its wall clock jump."""

    def __init__(self, loop: asyncio.AbstractEventLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self._skew_ms = skew_ms
        self._before: list[tuple[float, int]] = []  # how wrong it was, and until when

    @property
    def skew_ms(self) -> int:
        return self._skew_ms

    @skew_ms.setter
    def skew_ms(self, skew_ms: int) -> None:
        self._before.append((self._loop.time(), self._skew_ms))
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return _FIRST_MS + int(self._loop.time() * 1000) + self._skew_ms

    def latest_ms(self, within_s: float = inf) -> int:
        """The latest that it shows now, or has shown within some seconds and would show now."""
        since_s = self._loop.time() - within_s
        return (
            self.now_ms()
            - self._skew_ms
            + max(self._skew_ms, *(s for at, s in self._before if at >= since_s), -(1 << 62))
        )

    def monotonic(self) -> float:
        return self._loop.time()
