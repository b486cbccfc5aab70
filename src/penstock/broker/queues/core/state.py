"""All of a queue that survives, and the one place where it changes: by applying what was written."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.queues.core.config import QueueSettings
from penstock.broker.queues.core.deliveries import SEQUENCE_WRAP, Deliveries
from penstock.broker.queues.core.receipts import Seal
from penstock.broker.queues.core.records import (
    Assigned,
    Begun,
    Configured,
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
from penstock.broker.queues.core.snapshots import RowsCopy, unpack_rows
from penstock.broker.queues.core.tally import Tally

# A snapshot is due when the changes since the last one are worth this many rows, or twice the rows that there are: so
# the log is read within a second, and writing snapshots costs less than half of what the changes cost.
_SNAPSHOT_ROWS_MIN: Final = 10_000


class Draft:
    """A snapshot without its rows, and those; it is finished in any thread."""

    def __init__(self, bare: Snapshot, rows: RowsCopy, weight: int) -> None:
        self._bare = bare
        self._rows = rows
        self.weight = weight
        self.snapshot: Snapshot | None = None

    def finish(self) -> Snapshot:
        rows, consumers = self._rows.pack()
        self.snapshot = msgspec.structs.replace(self._bare, rows=rows, consumers=consumers)
        return self.snapshot


class QueueState:
    """The deliveries, who made them, and what numbers were given out."""

    def __init__(self, settings: QueueSettings) -> None:
        self.deliveries = Deliveries(settings)
        self.seal: Seal | None = None  # of a group that has begun
        self.tally = Tally()  # which nobody writes down
        self._reset()
        self._latest_ms = 0  # when the last change was written
        self._weight = 0  # of the changes since the last snapshot
        self._drafted: Draft | None = None  # of this very state, so applying it changes nothing

    def _reset(self) -> None:
        """Be as a group that never was, but for its deliveries."""
        self.last_lease = 0
        self.last_dead_letter = 0
        self.is_paused = False
        self.pause_reason = ""
        self.values: dict[str, str] = {}  # the group's own settings
        self.producer: ProducerIdentity | None = None  # of dead letters
        self.buried = 0  # messages with a sequence under it

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
                self.is_paused, self.pause_reason = event.is_paused, event.reason
            case Configured():
                self.values = event.values
            case Assigned():
                self.producer = ProducerIdentity(event.producer_id, event.epoch)
                self.last_dead_letter, self.buried = self.deliveries.renumber(self.last_dead_letter)
            case Begun():
                self.seal = Seal(event.secret)
                self.deliveries.move(event.start)
            case Forgotten():
                self.seal = None
                self._reset()
                self.deliveries.move(0)
            case Snapshot():
                self._take_over(event)

    def _lease(self, event: Leased) -> None:
        self.last_lease = event.lease
        self.tally.on_leased(event)
        self.deliveries.lease(event.lease, event.consumer, event.until_ms, event.spans)
        for first, last in event.gaps:
            self.deliveries.finish(first, last)
        self._weight += len(event.spans) + len(event.gaps)

    def _settle(self, event: Settled) -> None:
        self.tally.on_settled(event)
        for first, last in event.acked:
            self.deliveries.finish(first, last)
        for span in event.waiting:
            self.deliveries.wait(*span)
        for burial in event.dying:
            self.last_dead_letter, first, last = burial[:3]
            self.deliveries.bury(*burial, sequence=self.buried % SEQUENCE_WRAP)
            self.buried += last - first + 1
        self._weight += len(event.acked) + len(event.waiting) + len(event.dying)

    # -- transactions -------------------------------------------------------------------------------------------------

    def hold(self, event: Event, at_ms: int, producer_id: int) -> None:
        """Take over what was written at ``at_ms`` as a part of a producer's transaction."""
        assert isinstance(event, Settled), "only acks wait for an end"
        self._latest_ms = max(self._latest_ms, at_ms)
        for first, last in event.acked:
            self.deliveries.holds.add(first, last, producer_id)
        self._weight += 1 + len(event.acked)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> Settled | None:
        """Take over the end of a transaction; what was acked by it."""
        ended = self.deliveries.end_holds(producer_id, is_commit=is_commit)
        self._weight += len(ended)
        if not ended or not is_commit:
            return None
        event = Settled(acked=[(first, last) for first, last in ended])
        self.tally.on_settled(event)
        return event

    # -- time ---------------------------------------------------------------------------------------------------------

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

    def draft(self, upto: int) -> Draft:
        """All of this as it is now, when the log ends at ``upto``; to be made a snapshot of, and that to be written."""
        assert self.seal is not None
        bare = Snapshot(
            secret=self.seal.secret,
            committed=self.deliveries.committed,
            last_lease=self.last_lease,
            last_dead_letter=self.last_dead_letter,
            is_paused=self.is_paused,
            at_ms=self._latest_ms,
            consumers=[],
            rows=[],
            dead_letters=self.deliveries.waiting_letters(),
            pause_reason=self.pause_reason,
            values=self.values,
            producer=self.producer,
            buried=self.buried,
            holds=list(self.deliveries.holds),
            upto=upto,
        )
        self._drafted = Draft(bare, RowsCopy(self.deliveries), self._weight)
        return self._drafted

    def snapshot(self) -> Snapshot:
        """The same at once, for everything before itself."""
        return self.draft(-1).finish()

    def _take_over(self, snapshot: Snapshot) -> None:
        if self._drafted is not None and snapshot is self._drafted.snapshot:
            self._weight -= self._drafted.weight  # what was changed since is not in it
        else:
            self._weight = 0
            self.seal = Seal(snapshot.secret)
            self.last_lease = snapshot.last_lease
            self.last_dead_letter = snapshot.last_dead_letter
            self._latest_ms = max(self._latest_ms, snapshot.at_ms)
            self.is_paused, self.pause_reason = snapshot.is_paused, snapshot.pause_reason
            self.values = snapshot.values
            self.producer = None if snapshot.producer is None else ProducerIdentity(*snapshot.producer)
            self.buried = snapshot.buried
            unpack_rows(snapshot, self.deliveries)
        self._drafted = None
