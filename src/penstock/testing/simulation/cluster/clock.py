"""A node's clock in simulation: its seconds are the loop's, its wall clock may be wrong and may jump."""

from __future__ import annotations

import asyncio
from typing import Final

_FIRST_MS: Final = 1_700_000_000_000


class SimulatedClock:
    """Virtual time as one node sees it. Set ``skew_ms`` to have its wall clock jump."""

    def __init__(self, loop: asyncio.AbstractEventLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return _FIRST_MS + int(self._loop.time() * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.time()
