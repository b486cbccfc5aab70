"""How long the next try has to wait after failed ones, by address and by user. Pure: it is told the time.

A few failures cost nothing: people mistype. Then each doubles the wait, up to a cap that slows an attacker and does not
lock a user out whose name somebody else tries. Failures are forgotten with time. The number of names that are
remembered is bounded; past it the oldest are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

NAMES_MAX: Final = 10_000
FREE_TRIES: Final = 5
FIRST_WAIT_MS: Final = 100
FORGET_MS: Final = 60_000  # one failure is forgotten each so often


@dataclass(slots=True)
class _Count:
    failures: float
    at_ms: int


class Failures:
    """Failed tries by name. ``wait_max_ms`` is the longest wait."""

    def __init__(self, wait_max_ms: int, names_max: int = NAMES_MAX) -> None:
        self._wait_max_ms = wait_max_ms
        self._names_max = names_max
        self._counts: OrderedDict[str, _Count] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def failed(self, name: str, now_ms: int) -> None:
        count = self._counts.pop(name, None) or _Count(0, now_ms)
        self._counts[name] = _Count(self._left(count, now_ms) + 1, now_ms)
        if len(self._counts) > self._names_max:
            self._counts.popitem(last=False)

    def succeeded(self, name: str) -> None:
        self._counts.pop(name, None)

    def wait_ms(self, name: str, now_ms: int) -> int:
        """How long a try under that name has to wait now."""
        count = self._counts.get(name)
        if count is None:
            return 0
        over = int(self._left(count, now_ms)) - FREE_TRIES
        return min(self._wait_max_ms, FIRST_WAIT_MS << min(over, 20)) if over >= 0 else 0

    @staticmethod
    def _left(count: _Count, now_ms: int) -> float:
        return max(0.0, count.failures - max(0, now_ms - count.at_ms) / FORGET_MS)
