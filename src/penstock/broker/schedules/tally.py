"""What was done with schedules since somebody asked last, and how late they came. Nobody writes this down."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

LATENESS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 60_000)


@dataclass(slots=True)
class Tally:
    """``lateness`` counts what was fired by how late that was: up to each of `LATENESS_MS`, and later."""

    added: int = 0
    fired: int = 0
    cancelled: int = 0
    failed: int = 0
    skipped: int = 0
    late_ms: int = 0  # all of it together
    lateness: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_MS) + 1))

    def note_late(self, by_ms: int) -> None:
        self.late_ms += by_ms
        self.lateness[bisect_left(LATENESS_MS, by_ms)] += 1
