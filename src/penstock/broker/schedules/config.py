"""How schedules behave, where that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.schedules.wheel import PERIODS_MAX
from penstock.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """``grace_ms``: an occurrence that is later than this was missed. ``tries``: refusals until a schedule fails."""

    grace_ms: int = 60_000
    tries: int = 10
    retry_base_ms: int = 200
    retry_cap_ms: int = 30_000
    periods_ahead: int = 16  # of 2.9 hours each, are kept in memory: some two days
    reason_chars_max: int = 500

    def __post_init__(self) -> None:
        if not 2 <= self.periods_ahead <= PERIODS_MAX:
            raise InvalidConfig(f"2 to {PERIODS_MAX} periods are kept in memory, not {self.periods_ahead}.")

    def backoff_ms(self, tries: int) -> int:
        """How long to wait after so many refusals."""
        return min(self.retry_cap_ms, self.retry_base_ms << min(tries - 1, 20))
