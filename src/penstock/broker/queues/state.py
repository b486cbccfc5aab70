"""All of a queue that survives, and the one place where it changes: by applying what was written."""

from __future__ import annotations

from typing import Final

from penstock.broker.queues.config import QueueSettings
from penstock.broker.queues.deliveries import Deliveries
from penstock.broker.queues.receipts import Seal
from penstock.broker.queues.records import (
    Begun,
    Event,
    Extended,
    Forgotten,
    Leased,
    Moved,
    Paused,
    Settled,
    Snapshot,
    Trimmed,
)
from penstock.broker.queues.snapshots import pack_rows, unpack_rows

# A snapshot is due when the changes since the last one are worth this many rows, or twice the rows that there are: so
# the log is read within a second, and writing snapshots costs less than half of what the changes cost.
_SNAPSHOT_ROWS_MIN: Final = 10_000


class QueueState:
    """The deliveries, who made them, and what numbers were given out."""

    def __init__(self, settings: QueueSettings) -> None:
        self.deliveries = Deliveries(settings)
        self.seal: Seal | None = None  # of a group that has begun
        self.last_lease = 0
        self.last_dead_letter = 0
        self.is_paused = False
        self._latest_ms = 0  # when the last change was written
        self._weight = 0  # of the changes since the last snapshot
        self._written: Snapshot | None = None  # of this very state, so applying it changes nothing

    def apply(self, event: Event, at_ms: int) -> None:
        """Take over what was written at ``at_ms``."""
        self._latest_ms = max(self._latest_ms, at_ms)
        self._weight += 1
        match event:
            case Leased():
                self._lease(event)
            case Settled():
                self._settle(event)
            case Extended():
                for first, last in event.spans:
                    self.deliveries.extend(first, last, event.until_ms)
                self._weight += len(event.spans)
            case Moved():
                self.deliveries.move(event.offset)
            case Trimmed():
                self.deliveries.trim(event.start)
            case Paused():
                self.is_paused = event.is_paused
            case Begun():
                self.seal = Seal(event.secret)
                self.deliveries.move(event.start)
            case Forgotten():
                self.seal = None
                self.is_paused = False
                self.last_lease = self.last_dead_letter = 0
                self.deliveries.move(0)
            case Snapshot():
                self._take_over(event)

    def _lease(self, event: Leased) -> None:
        self.last_lease = event.lease
        self.deliveries.lease(event.lease, event.consumer, event.until_ms, event.spans)
        for first, last in event.gaps:
            self.deliveries.finish(first, last)
        self._weight += len(event.spans) + len(event.gaps)

    def _settle(self, event: Settled) -> None:
        for first, last in event.acked:
            self.deliveries.finish(first, last)
        for span in event.waiting:
            self.deliveries.wait(*span)
        for burial in event.dying:
            self.last_dead_letter = burial[0]
            self.deliveries.bury(*burial)
        self._weight += len(event.acked) + len(event.waiting) + len(event.dying)

    def set_clock(self, now_ms: int) -> None:
        """Count by another clock than who wrote the log.

        If that one was ahead, every lease would seem to have longer to go than it was given: so much is taken off. Was
        it behind, leases end early, which costs a delivery at worst.
        """
        if self._latest_ms > now_ms:
            self.deliveries.shift(now_ms - self._latest_ms)
            self._latest_ms = now_ms

    # -- snapshots ----------------------------------------------------------------------------------------------------

    @property
    def is_snapshot_due(self) -> bool:
        return self.seal is not None and self._weight > max(_SNAPSHOT_ROWS_MIN, 2 * len(self.deliveries.rows))

    def snapshot(self) -> Snapshot:
        assert self.seal is not None
        rows, consumers = pack_rows(self.deliveries)
        self._written = Snapshot(
            secret=self.seal.secret,
            committed=self.deliveries.committed,
            last_lease=self.last_lease,
            last_dead_letter=self.last_dead_letter,
            is_paused=self.is_paused,
            at_ms=self._latest_ms,
            consumers=consumers,
            rows=rows,
            reasons=self.deliveries.reasons(),
        )
        return self._written

    def _take_over(self, snapshot: Snapshot) -> None:
        self._weight = 0
        if snapshot is not self._written:
            self.seal = Seal(snapshot.secret)
            self.last_lease = snapshot.last_lease
            self.last_dead_letter = snapshot.last_dead_letter
            self._latest_ms = max(self._latest_ms, snapshot.at_ms)
            self.is_paused = snapshot.is_paused
            unpack_rows(snapshot, self.deliveries)
        self._written = None
