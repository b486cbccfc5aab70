"""The whole state of a queue as one record, and back.

Rows are written as differences from the row before: neighbours have close offsets, leases and times, so most numbers
are single bytes. Rows are copied at one moment, and packed while others go on.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import sub
from typing import Final

from penstock.broker.queues.core.deliveries import Deliveries
from penstock.broker.queues.core.records import Snapshot
from penstock.broker.queues.core.rows import LEASED, NO_CONSUMER, Row

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


def unpack_rows(snapshot: Snapshot, deliveries: Deliveries) -> None:
    """Take over the rows of a snapshot."""
    deliveries.move(snapshot.committed)
    deliveries.load_letters(snapshot.dead_letters)
    offset, number, time_ms = snapshot.committed, 0, 0
    for at in range(0, len(snapshot.rows), _NUMBERS):
        gap, length, state, more, later_ms, place = snapshot.rows[at : at + _NUMBERS]
        first, last = offset + gap, offset + gap + length
        offset, number, time_ms = last + 1, number + more, time_ms + later_ms
        row = Row(first, last, state & 3, state >> 2, number, time_ms, -1)
        deliveries.load(row, snapshot.consumers[place] if row.kind == LEASED else None)
    for hold in snapshot.holds:
        deliveries.holds.add(*hold)
