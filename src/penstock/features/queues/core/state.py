"""How many messages went which way, counted as changes are applied: by intervals, never by message.

The whole state of a queue as one record, and back.

Rows are written as differences from the row before: neighbours have close offsets, leases and times, so most numbers
are single bytes. Rows are copied at one moment, and packed while others go on.

All of a queue that survives, and the one place where it changes: by applying what was written.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import sub
from typing import Final

import msgspec

from penstock.consensus.queue_config import QueueSettings
from penstock.features.queues.core.deliveries import LEASED, NO_CONSUMER, SEQUENCE_WRAP, Deliveries, DeliveryRow
from penstock.features.queues.core.messages import Seal
from penstock.features.queues.core.records import (
    EndCause,
    LeaseGranted,
    LeasesExtended,
    LeasesSettled,
    ProducerAssigned,
    QueueBegun,
    QueueConfigured,
    QueueEvent,
    QueueForgotten,
    QueueMoved,
    QueuePaused,
    QueueSnapshot,
    QueueTrimmed,
)
from penstock.machines.messages import ProducerIdentity


@dataclass(slots=True)
class QueueTally:
    """Messages since somebody looked last."""

    delivered: int = 0  # for the first time
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    rejected: int = 0
    expired: int = 0  # their lease ended without an answer
    buried: int = 0  # written to the dead letters

    @property
    def failed(self) -> int:
        return self.nacked + self.rejected + self.expired

    def add(self, other: QueueTally) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def on_leased(self, event: LeaseGranted) -> None:
        for first, last, count in event.spans:
            if count == 1:
                self.delivered += last - first + 1
            else:
                self.redelivered += last - first + 1

    def on_settled(self, event: LeasesSettled) -> None:
        match event.cause:
            case EndCause.ACK:
                self.acked += _messages(event.acked)
            case EndCause.BURIAL:
                self.buried += _messages(event.acked)
            case EndCause.NACK:
                self.nacked += _failed(event)
            case EndCause.REJECT:
                self.rejected += _failed(event)
            case EndCause.EXPIRY:
                self.expired += _failed(event)
            case EndCause.GAP | EndCause.RELEASE:
                pass


def _messages(spans: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in spans)


def _failed(event: LeasesSettled) -> int:
    again = sum(last - first + 1 for first, last, _, _ in event.waiting)
    return again + sum(last - first + 1 for _, first, last, _, _ in event.dying)


_NUMBERS: Final = 6  # for each row


class RowsCopy:
    """The rows as they are at one moment. Making it is quick; packing it is not, and can be done in any thread."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._committed = deliveries.committed
        self._chunks = deliveries.rows.copied_chunks()
        self._names = deliveries.consumers.names()

    def pack(self) -> tuple[list[int], list[str]]:
        """Rows as numbers, and the consumers that they name, in the order of their first row."""
        packed, consumers = _pack(self._chunks, self._committed)
        return packed, [self._names[consumer] for consumer in consumers]


def _pack(chunks: Sequence[Sequence[array[int]]], committed: int) -> tuple[list[int], list[int]]:
    packed: list[int] = []
    consumers: dict[int, int] = {}  # a consumer's number here, and in the snapshot
    end, number, time_ms = committed - 1, 0, 0
    for firsts, lasts, states, numbers, times_ms, holders in chunks:
        for holder in dict.fromkeys(holders):
            if holder != NO_CONSUMER and holder not in consumers:
                consumers[holder] = len(consumers)
        places = {NO_CONSUMER: NO_CONSUMER, **consumers}
        block = [0] * (_NUMBERS * len(firsts))
        block[0::_NUMBERS] = [first - before - 1 for first, before in zip(firsts, [end, *lasts[:-1]], strict=True)]
        block[1::_NUMBERS] = map(sub, lasts, firsts)
        block[2::_NUMBERS] = states
        block[3::_NUMBERS] = map(sub, numbers, [number, *numbers[:-1]])
        block[4::_NUMBERS] = map(sub, times_ms, [time_ms, *times_ms[:-1]])
        block[5::_NUMBERS] = map(places.__getitem__, holders)
        packed += block
        end, number, time_ms = lasts[-1], numbers[-1], times_ms[-1]
    return packed, list(consumers)


def unpack_rows(snapshot: QueueSnapshot, deliveries: Deliveries) -> None:
    """Take over the rows of a snapshot."""
    deliveries.move(snapshot.committed)
    deliveries.load_letters(snapshot.dead_letters)
    offset, number, time_ms = snapshot.committed, 0, 0
    for at in range(0, len(snapshot.rows), _NUMBERS):
        gap, length, state, more, later_ms, place = snapshot.rows[at : at + _NUMBERS]
        first, last = offset + gap, offset + gap + length
        offset, number, time_ms = last + 1, number + more, time_ms + later_ms
        row = DeliveryRow(first, last, state & 3, state >> 2, number, time_ms, -1)
        deliveries.load(row, snapshot.consumers[place] if row.kind == LEASED else None)
    for hold in snapshot.holds:
        deliveries.holds.add(*hold)


# A snapshot is due when the changes since the last one are worth this many rows, or twice the rows that there are: so
# the log is read within a second, and writing snapshots costs less than half of what the changes cost.
_SNAPSHOT_ROWS_MIN: Final = 10_000


class SnapshotDraft:
    """A snapshot without its rows, and those; it is finished in any thread."""

    def __init__(self, bare: QueueSnapshot, rows: RowsCopy, weight: int) -> None:
        self._bare = bare
        self._rows = rows
        self.weight = weight
        self.snapshot: QueueSnapshot | None = None

    def finish(self) -> QueueSnapshot:
        rows, consumers = self._rows.pack()
        self.snapshot = msgspec.structs.replace(self._bare, rows=rows, consumers=consumers)
        return self.snapshot


class QueueState:
    """The deliveries, who made them, and what numbers were given out."""

    def __init__(self, settings: QueueSettings) -> None:
        self.deliveries = Deliveries(settings)
        self.seal: Seal | None = None  # of a group that has begun
        self.tally = QueueTally()  # which is kept in memory alone
        self._reset()
        self._latest_ms = 0  # when the last change was written
        self._weight = 0  # of the changes since the last snapshot
        self._drafted: SnapshotDraft | None = None  # of this very state, so applying it changes nothing

    def _reset(self) -> None:
        """Be as a group that never was, but for its deliveries."""
        self.last_lease = 0
        self.last_dead_letter = 0
        self.is_paused = False
        self.pause_reason = ""
        self.values: dict[str, str] = {}  # the group's own settings
        self.producer: ProducerIdentity | None = None  # of dead letters
        self.buried = 0  # messages with a sequence under it

    def apply(self, event: QueueEvent, at_ms: int) -> None:
        """Take over what was written at ``at_ms``."""
        self._latest_ms = max(self._latest_ms, at_ms)
        self._weight += 1
        match event:
            case LeaseGranted():
                self._lease(event)
            case LeasesSettled():
                self._settle(event)
            case LeasesExtended():
                for first, last in event.spans:
                    self.deliveries.extend(first, last, event.until_ms)
                self._weight += len(event.spans)
            case QueueMoved():
                self.deliveries.move(event.offset)
            case QueueTrimmed():
                self.deliveries.trim(event.start)
            case QueuePaused():
                self.is_paused, self.pause_reason = event.is_paused, event.reason
            case QueueConfigured():
                self.values = event.values
            case ProducerAssigned():
                self.producer = ProducerIdentity(event.producer_id, event.epoch)
                self.last_dead_letter, self.buried = self.deliveries.renumber(self.last_dead_letter)
            case QueueBegun():
                self.seal = Seal(event.secret)
                self.deliveries.move(event.start)
            case QueueForgotten():
                self.seal = None
                self._reset()
                self.deliveries.move(0)
            case QueueSnapshot():
                self._take_over(event)

    def _lease(self, event: LeaseGranted) -> None:
        self.last_lease = event.lease
        self.tally.on_leased(event)
        self.deliveries.lease(event.lease, event.consumer, event.until_ms, event.spans)
        for first, last in event.gaps:
            self.deliveries.finish(first, last)
        self._weight += len(event.spans) + len(event.gaps)

    def _settle(self, event: LeasesSettled) -> None:
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

    def hold(self, event: QueueEvent, at_ms: int, producer_id: int) -> None:
        """Take over what was written at ``at_ms`` as a part of a producer's transaction."""
        assert isinstance(event, LeasesSettled), "only acks wait for an end"
        self._latest_ms = max(self._latest_ms, at_ms)
        for first, last in event.acked:
            self.deliveries.holds.add(first, last, producer_id)
        self._weight += 1 + len(event.acked)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> LeasesSettled | None:
        """Take over the end of a transaction; what was acked by it."""
        ended = self.deliveries.end_holds(producer_id, is_commit=is_commit)
        self._weight += len(ended)
        if not ended or not is_commit:
            return None
        event = LeasesSettled(acked=[(first, last) for first, last in ended])
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

    def draft(self, upto: int) -> SnapshotDraft:
        """All of this as it is now, when the log ends at ``upto``; to be made a snapshot of, and that to be written."""
        assert self.seal is not None
        bare = QueueSnapshot(
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
        self._drafted = SnapshotDraft(bare, RowsCopy(self.deliveries), self._weight)
        return self._drafted

    def snapshot(self) -> QueueSnapshot:
        """The same at once, for everything before itself."""
        return self.draft(-1).finish()

    def _take_over(self, snapshot: QueueSnapshot) -> None:
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
