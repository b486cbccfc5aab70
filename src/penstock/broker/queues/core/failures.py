"""What becomes of deliveries that failed: another one later, or a dead letter after the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.queues.core.config import QueueSettings
from penstock.broker.queues.core.records import Cause, Settled
from penstock.broker.queues.core.rows import Row, joined_by_count

# So many messages are one dead letter at most, so that it can be read and written at once.
_BURIED_TOGETHER: Final = 500

Burial = tuple[int, int, int, int, str]  # number, first, last, delivery count, reason


class Failures:
    """Deliveries that failed now for the same reason. Dead letters are numbered from after ``last_letter`` on."""

    def __init__(self, settings: QueueSettings, last_letter: int, cause: Cause, reason: str) -> None:
        self._settings = settings
        self._last_letter = last_letter
        self._cause = cause
        self._reason = reason[: settings.reason_chars_max]

    def retried(self, rows: list[Row], now_ms: int, delay_of: Callable[[int], int]) -> Settled:
        """Deliver again, after a delay that depends on how often it was, unless that was the last try."""
        again = [row for row in rows if not self._settings.is_last_try(row.deliveries)]
        over = [row for row in rows if self._settings.is_last_try(row.deliveries)]
        waiting = [(first, last, count, now_ms + delay_of(count)) for first, last, count in joined_by_count(again)]
        return Settled(waiting=waiting, dying=self._burials(over), cause=self._cause)

    def buried(self, rows: list[Row]) -> Settled:
        """Give up at once."""
        return Settled(dying=self._burials(rows), cause=self._cause)

    def _burials(self, rows: list[Row]) -> list[Burial]:
        spans = [
            (begin, min(begin + _BURIED_TOGETHER - 1, last), count)
            for first, last, count in joined_by_count(rows)
            for begin in range(first, last + 1, _BURIED_TOGETHER)
        ]
        return [(number, *span, self._reason) for number, span in enumerate(spans, self._last_letter + 1)]
