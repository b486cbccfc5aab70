"""A meter of one rate: what was used, and how long to pause because of it.

A token bucket that may go into debt. A client is never refused for its first request, however large: it pauses after
it, until the debt is paid. So a batch above the rate gets through, and the average holds.
"""

from __future__ import annotations

from typing import Final

_BURST_SECONDS: Final = 1.0  # what an idle client saves up
_PAUSE_SECONDS_MAX: Final = 30.0  # clients give up on a connection that is silent for longer


class Meter:
    """One rate in units a second, shared by all clients that a quota is for."""

    __slots__ = ("_at", "_balance", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._balance = rate * _BURST_SECONDS
        self._at = now

    def __repr__(self) -> str:
        return f"<Meter {self.rate}/s, balance {self._balance:.0f}>"

    def use(self, amount: float, now: float) -> float:
        """Count what is used now; seconds to pause before more."""
        rate = self.rate
        balance = min(self._balance + (now - self._at) * rate, rate * _BURST_SECONDS) - amount
        self._at = now
        # A debt is never larger than the longest pause pays: else one huge request would silence a client for hours.
        self._balance = max(balance, -rate * _PAUSE_SECONDS_MAX)
        return -self._balance / rate if balance < 0 else 0.0

    def debt_s(self, now: float) -> float:
        """Seconds until what was used is paid for; nothing is counted by asking."""
        balance = self._balance + (now - self._at) * self.rate
        return -balance / self.rate if balance < 0 else 0.0

    def is_idle(self, now: float) -> bool:
        """Whether a new meter would be the same."""
        return self._balance + (now - self._at) * self.rate >= self.rate * _BURST_SECONDS
