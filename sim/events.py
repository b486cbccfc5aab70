"""Virtual time: what happens next is the earliest of what was planned, and nothing else."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Events:
    """A queue of things to happen. Time stands still while one of them does."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._planned: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def plan(self, delay_ms: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._planned, (self.now_ms + max(delay_ms, 0), next(self._order), event))

    def run_until(self, end_ms: int) -> None:
        """Let everything happen that is due by then."""
        while self._planned and self._planned[0][0] <= end_ms:
            self.now_ms, _, event = heapq.heappop(self._planned)
            event()
        self.now_ms = end_ms
