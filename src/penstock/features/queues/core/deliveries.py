"""What a row of a queue says: how it is with an interval of messages. Messages without a row were never delivered.

What is to be looked at when: intervals of offsets, sorted roughly by time.

A mark costs 24 bytes and is never searched for: one that no longer means anything is found out when its time comes, by
the caller that put it here. Times are gathered in buckets, a millisecond wide when near, a second or a minute when far;
a wide bucket is sorted into narrower ones as soon as it begins. So adding is O(1), but for the first mark of a bucket.

Who holds how many messages. Rows name consumers by number; a number is free again once nothing is held under it.

Which messages are acked in transactions that have not ended: they keep their lease until it is decided.

A row stays what it was; this only says that no request may touch it meanwhile, nor time. So an abort has nothing to
undo.

All that is known of the deliveries of one partition to one group: the state that records are applied to.

Everything before ``committed`` is done. From there on rows tell of what was delivered; what they leave out is ready.
So memory grows with what is in flight and with gaps, never with what was acked. Besides the rows there are only counts
and indices, which follow from them.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from itertools import chain, islice, pairwise
from math import inf
from typing import Final, NamedTuple

from penstock.consensus.queue_config import Lanes, Order, QueueSettings
from penstock.features.queues.core.intervals import Interval, IntervalMap, IntervalSet
from penstock.features.queues.core.messages import PendingDeadLetter
from penstock.features.queues.core.supply import (
    KeyedSharedSupply,
    KeyedSupply,
    PlainSupply,
    SharedSupply,
    Supply,
    pool_of,
)

COLUMNS: Final = "iqqi"  # kind and delivery count in one, number, time, consumer


class Kind(IntEnum):
    """The state of messages that were delivered."""

    LEASED = 0  # number: the lease, time: until when
    WAITING = 1  # time: from when on to be delivered again
    DYING = 2  # number: the dead letter
    ACKED = 3


LEASED: Final = int(Kind.LEASED)
WAITING: Final = int(Kind.WAITING)
DYING: Final = int(Kind.DYING)
ACKED: Final = int(Kind.ACKED)

NO_CONSUMER: Final = -1
ACKED_FACTS: Final = (ACKED, 0, 0, NO_CONSUMER)


class DeliveryRow(NamedTuple):
    """An interval of messages with the same history."""

    first: int
    last: int
    kind: int
    deliveries: int  # how often they were delivered
    number: int
    time_ms: int
    consumer: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


def facts_of(kind: int, count: int, number: int = 0, time_ms: int = 0, consumer: int = NO_CONSUMER) -> tuple[int, ...]:
    """A row's facts as they are stored."""
    return count << 2 | kind, number, time_ms, consumer


def row_of(stored: tuple[int, int, tuple[int, ...]]) -> DeliveryRow:
    first, last, (state, number, time_ms, consumer) = stored
    return DeliveryRow(first, last, state & 3, state >> 2, number, time_ms, consumer)


def joined(rows: Iterable[DeliveryRow]) -> list[tuple[int, int]]:
    """The intervals of rows, which are sorted, with neighbours made one."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and found[-1][1] == row.first - 1:
            found[-1] = (found[-1][0], row.last)
        else:
            found.append((row.first, row.last))
    return found


def joined_by_count(rows: Iterable[DeliveryRow]) -> list[tuple[int, int, int]]:
    """The same, with neighbours made one only if they were delivered as often."""
    found: list[tuple[int, int, int]] = []
    for row in rows:
        if found and found[-1][1:] == (row.first - 1, row.deliveries):
            found[-1] = (found[-1][0], row.last, row.deliveries)
        else:
            found.append((row.first, row.last, row.deliveries))
    return found


_NEAR_MS: Final = 60_000
_FAR_MS: Final = 3_600_000
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60_000


class OffsetDeadlines:
    """Marks by time."""

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}  # by when they begin: time, first and last offset of each mark
        self._begins: list[int] = []  # a heap of their keys
        self._now_ms = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def next_ms(self) -> float:
        """Nothing is due before this time; it may be early by the width of a bucket, never late."""
        return self._begins[0] if self._begins else inf

    def add(self, at_ms: int, first: int, last: int) -> None:
        away_ms = at_ms - self._now_ms
        width_ms = 1 if away_ms <= _NEAR_MS else _SECOND_MS if away_ms <= _FAR_MS else _MINUTE_MS
        begins_ms = at_ms - at_ms % width_ms
        bucket = self._buckets.get(begins_ms)
        if bucket is None:
            bucket = self._buckets[begins_ms] = array("q")
            heappush(self._begins, begins_ms)
        bucket.extend((at_ms, first, last))
        self._size += 1

    def pop(self, now_ms: int) -> list[Interval]:
        """What is due by now, and marked no longer; sorted, with neighbours made one."""
        self._now_ms = max(self._now_ms, now_ms)
        due: list[tuple[int, int]] = []
        while self._begins and self._begins[0] <= now_ms:
            bucket = self._buckets.pop(heappop(self._begins))
            self._size -= len(bucket) // 3
            marks = iter(bucket)
            for at_ms, first, last in zip(marks, marks, marks, strict=True):
                if at_ms <= now_ms:
                    due.append((first, last))
                else:
                    self.add(at_ms, first, last)
        return _joined(due)


def _joined(due: list[tuple[int, int]]) -> list[Interval]:
    due.sort()
    joined: list[Interval] = []
    low, high = 0, -2
    for first, last in due:
        if first <= high + 1:
            high = max(high, last)
            continue
        if high >= low:
            joined.append(Interval(low, high))
        low, high = first, last
    if high >= low:
        joined.append(Interval(low, high))
    return joined


class Consumers:
    """Consumers that hold messages."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._holds: dict[int, int] = {}
        self._spare: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def number_of(self, name: str) -> int:
        """A consumer's number, a new one if it has none; it stays while something is held."""
        number = self._numbers.get(name)
        if number is None:
            number = self._spare.pop() if self._spare else len(self._names)
            self._numbers[name] = number
            self._names[number] = name
            self._holds[number] = 0
        return number

    def name_of(self, number: int) -> str:
        return self._names[number]

    def names(self) -> dict[int, str]:
        """Names by number, as they are now."""
        return dict(self._names)

    def held_by(self, name: str) -> int:
        """How many messages a consumer holds."""
        number = self._numbers.get(name)
        return 0 if number is None else self._holds[number]

    def take(self, number: int, messages: int) -> None:
        self._holds[number] += messages

    def release(self, number: int, messages: int) -> None:
        self._holds[number] -= messages
        if self._holds[number] == 0:
            del self._holds[number], self._numbers[self._names.pop(number)]
            self._spare.append(number)

    def in_flight(self) -> dict[str, int]:
        """How many messages each consumer holds, by name."""
        return {name: self._holds[number] for name, number in self._numbers.items()}


NO_PRODUCER: Final = -1  # no producer: an ack counts at once


class Holds:
    """Intervals by offset, each held for one producer's transaction."""

    def __init__(self) -> None:
        self._spans = IntervalMap("q")
        # What each producer was given. Some of it may be done with by now, so only the spans tell what is held.
        self._given: dict[int, list[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return len(self._spans) > 0

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """First and last offset, and for whom, by offset."""
        return ((first, last, producer_id) for first, last, (producer_id,) in self._spans)

    def producers(self) -> Collection[int]:
        """For whose transactions something was held and not decided."""
        return self._given.keys()

    def add(self, first: int, last: int, producer_id: int) -> None:
        self._spans.put(first, last, (producer_id,))
        self._given.setdefault(producer_id, []).append((first, last))

    def end(self, producer_id: int) -> list[Interval]:
        """Hold nothing for a producer any more; what was held for it, by offset."""
        ended: list[Interval] = []
        for given in sorted(self._given.pop(producer_id, ())):
            mine = [(first, last) for first, last, owner in self.within(*given) if owner == producer_id]
            for first, last in mine:
                self._spans.clear(first, last)
                ended.append(Interval(first, last))
        return ended

    def within(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """What is held between two offsets, cut to them."""
        return ((low, high, owner) for low, high, (owner,) in self._spans.within(first, last))

    def free_parts(self, row: DeliveryRow) -> Iterator[DeliveryRow]:
        """The parts of a row that are not held."""
        return (row._replace(first=first, last=last) for first, last in self._spans.gaps(row.first, row.last))

    def clear(self, first: int, last: int) -> None:
        """Messages are done with, whatever becomes of the transaction."""
        self._spans.clear(first, last)

    def reset(self) -> None:
        self._spans.reset()
        self._given.clear()


SEQUENCE_WRAP: Final = 1 << 31  # where a producer's sequence numbers begin anew, as in Kafka
_MARKS_SPARE: Final = 1024  # marks that mean nothing any more are swept once they outnumber rows by this


@dataclass(slots=True)
class _Dying:
    """A dead letter that is not written yet: where to look for it, and how many of its messages are left."""

    first: int
    last: int
    left: int
    sequence: int  # of its first message
    reason: str


class Deliveries:
    """Rows by offset, and what follows from them."""

    def __init__(self, settings: QueueSettings) -> None:
        self.committed = 0
        self.rows = IntervalMap(COLUMNS)
        self.consumers = Consumers()
        self.holds = Holds()
        self._counts = [0, 0, 0, 0]  # messages by kind
        self._dying: dict[int, _Dying] = {}  # by the dead letter's number
        self._ends = OffsetDeadlines()  # of leases
        self._dues = OffsetDeadlines()  # of what waits
        self._overdue: deque[Interval] = deque()  # leases may have ended in there
        self._supplied_by: object = None
        self.supply: Supply
        self.supply_by(settings)

    def supply_by(self, settings: QueueSettings) -> None:
        """Choose messages as the settings want it, from now on."""
        wanted = settings.supplied_by
        if wanted == self._supplied_by:
            return
        self._supplied_by = wanted
        is_keyed = settings.order is Order.KEY
        if settings.has_shares and is_keyed:
            pool = pool_of(settings)
            self.supply = KeyedSharedSupply(self.rows, self.is_done, settings.held_max, self.undone, pool)
        elif settings.has_shares:
            can_scout = settings.lanes is Lanes.ON
            self.supply = SharedSupply(self.rows, self.undone, pool_of(settings), can_scout=can_scout)
        elif is_keyed:
            self.supply = KeyedSupply(self.rows, self.is_done, settings.held_max)
        else:
            self.supply = PlainSupply(self.rows)
        self._mark_anew()

    # -- what there is ------------------------------------------------------------------------------------------------

    def count(self, kind: int) -> int:
        """How many messages are in a state."""
        return self._counts[kind]

    def is_done(self, offset: int) -> bool:
        if offset < self.committed:
            return True
        row = self.rows.at(offset)
        return row is not None and row[2] == ACKED_FACTS

    def undone(self, first: int, last: int) -> Iterator[Interval]:
        """What is not done between two offsets."""
        begin = max(first, self.committed)
        for low, high, facts in self.rows.within(begin, last) if begin <= last else ():
            if facts == ACKED_FACTS:
                if begin < low:
                    yield Interval(begin, low - 1)
                begin = high + 1
        if begin <= last:
            yield Interval(begin, last)

    def undone_parts(self, gaps: Sequence[Interval]) -> list[tuple[int, int]]:
        """The parts of intervals that are not done yet, by offset; where intervals overlap, once."""
        if not gaps:
            return []
        open_parts = IntervalSet()
        for gap in gaps:
            for part in self.undone(*gap):
                open_parts.add(*part)
        return [(interval.first, interval.last) for interval in open_parts.intervals()]

    def within(self, first: int, last: int) -> Iterator[DeliveryRow]:
        """The rows between two offsets, cut to them."""
        return map(row_of, self.rows.within(first, last))

    def dead_letters(self, limit: int) -> list[PendingDeadLetter]:
        """What waits to be written to the dead letters, the oldest first. One that has gaps by now comes in pieces."""
        found: list[PendingDeadLetter] = []
        for number, dying in self._dying.items():
            if len(found) >= limit:
                break
            for row in self.remains(number):
                sequence = (dying.sequence + row.first - dying.first) % SEQUENCE_WRAP
                found.append(PendingDeadLetter(number, row.first, row.last, row.deliveries, dying.reason, sequence))
        return found

    def remains(self, number: int) -> list[DeliveryRow]:
        """What is left of a dead letter, nothing if it is not known."""
        dying = self._dying.get(number)
        if dying is None:
            return []
        return [row for row in self.within(dying.first, dying.last) if row.kind == DYING and row.number == number]

    def waiting_letters(self) -> dict[int, tuple[int, int, str]]:
        """The first offset, its sequence and the reason of dead letters that are to be written, by number."""
        return {number: (dying.first, dying.sequence, dying.reason) for number, dying in self._dying.items()}

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def wake_ms(self) -> float:
        return -inf if self._overdue else min(self._ends.next_ms, self._dues.next_ms)

    def wake(self, now_ms: int) -> None:
        """See what is due by now: messages to be delivered again become free, leases that ended are noted."""
        if self.supply.pool is not None:
            self.supply.pool.pass_time(now_ms)
        for interval in self._dues.pop(now_ms):
            for row in self.within(*interval):
                if row.kind == WAITING and row.time_ms <= now_ms:  # if later, another mark tells when
                    self.supply.on_due(row.first, row.last)
        self._overdue.extend(self._ends.pop(now_ms))

    def ended(self, now_ms: int, limit: int) -> list[DeliveryRow]:
        """Leases that have ended, by offset, up to ``limit`` rows. They are told of until something else is applied."""
        found: list[DeliveryRow] = []
        kept: list[Interval] = []
        while self._overdue and len(found) < limit:
            interval = self._overdue.popleft()
            leased = (row for row in self.within(*interval) if row.kind == LEASED and row.time_ms <= now_ms)
            rows = chain.from_iterable(map(self._unheld, leased))
            before = len(found)
            found += islice(rows, limit - before)
            if len(found) > before:
                kept.append(Interval(found[before].first, interval.last))
        self._overdue.extendleft(reversed(kept))
        found.sort()
        # Intervals may overlap, and then what they have in common was found twice. The rest comes next time.
        return found[:1] + [row for before, row in pairwise(found) if row.first > before.last]

    def _unheld(self, row: DeliveryRow) -> Iterable[DeliveryRow]:
        """The parts of a lease that are not in a transaction."""
        return self.holds.free_parts(row) if self.holds else (row,)

    def shift(self, by_ms: int) -> None:
        """Move every time, because another clock counts from now on."""
        for first, last, facts in list(self.rows):
            row = row_of((first, last, facts))
            if row.kind in (LEASED, WAITING):
                moved = facts_of(row.kind, row.deliveries, row.number, row.time_ms + by_ms, row.consumer)
                self.rows.put(first, last, moved)
        self._mark_anew()

    def _mark_anew(self) -> None:
        """Mark every row that time matters to; whatever else was marked means nothing."""
        self._ends = OffsetDeadlines()
        self._dues = OffsetDeadlines()
        self._overdue.clear()
        for row in map(row_of, self.rows):
            if row.kind == LEASED:
                self._ends.add(row.time_ms, row.first, row.last)
            elif row.kind == WAITING:
                self._dues.add(row.time_ms, row.first, row.last)

    def _mark_end(self, at_ms: int, first: int, last: int) -> None:
        """A lease ends at some time; marks that mean nothing any more are swept once there are many."""
        self._ends.add(at_ms, first, last)
        if len(self._ends) + len(self._dues) > 2 * len(self.rows) + _MARKS_SPARE:
            self._mark_anew()

    def _mark_due(self, at_ms: int, first: int, last: int) -> None:
        self._dues.add(at_ms, first, last)
        if len(self._ends) + len(self._dues) > 2 * len(self.rows) + _MARKS_SPARE:
            self._mark_anew()

    # -- what happens -------------------------------------------------------------------------------------------------

    def lease(self, lease: int, consumer: str, until_ms: int, spans: Sequence[tuple[int, int, int]]) -> None:
        """Messages are delivered: first, last and for which time."""
        if not spans:
            return
        number = self.consumers.number_of(consumer)
        for first, last, count in spans:
            self._put(DeliveryRow(first, last, LEASED, count, lease, until_ms, number))
            self._mark_end(until_ms, first, last)
            self.supply.on_leased(first, last)

    def wait(self, first: int, last: int, count: int, due_ms: int) -> None:
        """Messages are to be delivered again at some time."""
        self._put(DeliveryRow(first, last, WAITING, count, 0, due_ms, -1))
        self._mark_due(due_ms, first, last)

    def bury(self, number: int, first: int, last: int, count: int, reason: str, sequence: int) -> None:
        """Messages are to go to the dead letters."""
        self._dying[number] = _Dying(first, last, 0, sequence, reason)
        self._put(DeliveryRow(first, last, DYING, count, number, 0, -1))

    def renumber(self, last_number: int) -> tuple[int, int]:
        """Number what waits to be written from sequence 0 on. A letter with a hole becomes two.

        Tells the last number of a dead letter, and how many messages got a sequence.
        """
        letters = [(dying.reason, self.remains(number)) for number, dying in self._dying.items()]
        for reason, (_, *rest) in letters:
            for row in rest:
                last_number += 1
                self.bury(last_number, row.first, row.last, row.deliveries, reason, 0)
        sequence = 0
        for number, dying in self._dying.items():
            (row,) = self.remains(number)
            dying.first, dying.last, dying.sequence = row.first, row.last, sequence % SEQUENCE_WRAP
            sequence += row.size
        return last_number, sequence

    def extend(self, first: int, last: int, until_ms: int) -> None:
        """Leases last until another time."""
        for row in [row for row in self.within(first, last) if row.kind == LEASED]:
            facts = facts_of(LEASED, row.deliveries, row.number, until_ms, row.consumer)
            self.rows.put(row.first, row.last, facts)
        self._mark_end(until_ms, first, last)

    def end_holds(self, producer_id: int, *, is_commit: bool) -> list[Interval]:
        """A transaction has ended: what it acked is done with, or leased as before; what that is, by offset."""
        ended = self.holds.end(producer_id)
        for interval in ended:
            if is_commit:
                self.finish(*interval)
            else:  # its time may have come while it did not count
                for row in self.within(*interval):
                    self._mark_end(row.time_ms, row.first, row.last)
        return ended

    def finish(self, first: int, last: int) -> None:
        """Messages are done with, whatever was known of them."""
        first = max(first, self.committed)
        if first > last:
            return
        if self.holds:
            self.holds.clear(first, last)
        self._uncount(first, last)
        if first > self.committed:
            self._counts[ACKED] += last - first + 1
            self.rows.put(first, last, ACKED_FACTS)
        else:
            self.rows.clear(first, last)
            self.committed = last + 1
            next_row = self.rows.at(self.committed)
            if next_row is not None and next_row[2] == ACKED_FACTS:
                self._uncount(next_row[0], next_row[1])
                self.rows.clear(next_row[0], next_row[1])
                self.committed = next_row[1] + 1
        self.supply.on_done(first, last)

    def trim(self, start: int) -> None:
        """There is nothing before an offset any more."""
        self.finish(self.committed, start - 1)

    def move(self, offset: int) -> None:
        """Begin anew from an offset."""
        self.committed = offset
        self.rows.reset()
        self.consumers = Consumers()
        self.holds.reset()
        self._counts = [0, 0, 0, 0]
        self._dying.clear()
        self._mark_anew()
        self.supply.reset()

    def load_letters(self, letters: Mapping[int, tuple[int, int, str]]) -> None:
        """Take over what waited to be written; its rows come next."""
        for number in sorted(letters):
            first, sequence, reason = letters[number]
            self._dying[number] = _Dying(first, first, 0, sequence, reason)

    def load(self, row: DeliveryRow, consumer: str | None) -> None:
        """Take over a row of a snapshot, into a state that is empty but for the rows before it."""
        number = -1 if consumer is None else self.consumers.number_of(consumer)
        if row.kind == DYING:
            self._dying[row.number].last = row.last
        self._put(row._replace(consumer=number))
        if row.kind == LEASED:
            self._mark_end(row.time_ms, row.first, row.last)
        elif row.kind == WAITING:
            self._mark_due(row.time_ms, row.first, row.last)

    def _put(self, row: DeliveryRow) -> None:
        self._uncount(row.first, row.last)
        self._counts[row.kind] += row.size
        if row.kind == LEASED:
            self.consumers.take(row.consumer, row.size)
        elif row.kind == DYING:
            self._dying[row.number].left += row.size
        self.rows.put(row.first, row.last, facts_of(row.kind, row.deliveries, row.number, row.time_ms, row.consumer))

    def _uncount(self, first: int, last: int) -> None:
        if not self.rows.has_any(first, last):
            return
        for row in self.within(first, last):
            self._counts[row.kind] -= row.size
            if row.kind == LEASED:
                self.consumers.release(row.consumer, row.size)
            elif row.kind == DYING:
                dying = self._dying[row.number]
                dying.left -= row.size
                if dying.left == 0:
                    del self._dying[row.number]
