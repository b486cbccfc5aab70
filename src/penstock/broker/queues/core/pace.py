"""The pace of something: how much there was of it in all, lately, and when the last was."""

from __future__ import annotations

from typing import Final

_WINDOW_MS: Final = 10_000


class Pace:
    """Counts by windows of ten seconds; the rate is that of the window before, fading into this one."""

    __slots__ = ("_before", "_now", "_window", "last_ms", "total")

    def __init__(self) -> None:
        self.total = 0
        self.last_ms = 0
        self._window = 0
        self._now = 0
        self._before = 0

    def count(self, amount: int, now_ms: int) -> None:
        self._turn(now_ms)
        self.total += amount
        self.last_ms = now_ms
        self._now += amount

    def per_second(self, now_ms: int) -> float:
        """Over about the last ten seconds."""
        self._turn(now_ms)
        left = 1 - (now_ms - self._window * _WINDOW_MS) / _WINDOW_MS
        return (self._now + self._before * min(max(left, 0.0), 1.0)) * 1000 / _WINDOW_MS

    def _turn(self, now_ms: int) -> None:
        window = now_ms // _WINDOW_MS
        if window > self._window:
            self._before = self._now if window == self._window + 1 else 0
            self._now = 0
            self._window = window
