"""Producers whose batch was refused for now, so that what they sent behind it is told the same.

A producer has several batches on their way. If the first is refused because this node does not lead yet, or because too
few replicas are in sync, and that changes before the second is looked at, the second seems to come out of order. Some
clients then begin a new epoch for all that they have on its way anywhere, and what had arrived is stored twice
(librdkafka). As an answer that says to try again it does no harm: they send both again, in order.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import PenstockError
from penstock.records import peek_producer

# As many as a producer has on their way at most, so that one that really lost a batch hears of it.
_BEHIND_MAX: Final = 5
_PRODUCERS_MAX: Final = 1_000


class Refusals:
    """Of one partition."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[int, tuple[PenstockError, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._last)

    def note(self, batch: memoryview, error: PenstockError) -> None:
        """A producer's batch was refused, and may be sent again."""
        producer_id = peek_producer(batch)
        if producer_id < 0:
            return
        if len(self._last) >= _PRODUCERS_MAX:
            self._last.clear()
        self._last[producer_id] = (error, _BEHIND_MAX)

    def behind(self, producer_id: int) -> PenstockError | None:
        """What a batch is told for which the one before is missing, if that one was refused."""
        error, left = self._last.pop(producer_id, (None, 0))
        if error is not None and left > 1:
            self._last[producer_id] = (error, left - 1)
        return error

    def forget(self, producer_id: int) -> None:
        """A batch of the producer was taken."""
        self._last.pop(producer_id, None)
