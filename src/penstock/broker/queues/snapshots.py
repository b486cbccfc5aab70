"""The whole state of a queue as one record, and back.

Rows are written as differences from the row before: neighbours have close offsets, leases and times, so most numbers
are single bytes.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.queues.deliveries import Deliveries
from penstock.broker.queues.records import Snapshot
from penstock.broker.queues.rows import DYING, LEASED, Row

_NUMBERS: Final = 6  # for each row


def pack_rows(deliveries: Deliveries) -> tuple[list[int], list[str]]:
    """Rows as numbers, and the consumers that they name, in the order of their first row."""
    packed: list[int] = []
    consumers: dict[int, int] = {}  # a consumer's number here, and in the snapshot
    offset, number, time_ms = deliveries.committed, 0, 0
    for first, last, (state, row_number, row_time_ms, consumer) in deliveries.rows:
        place = -1 if consumer < 0 else consumers.setdefault(consumer, len(consumers))
        packed += (first - offset, last - first, state, row_number - number, row_time_ms - time_ms, place)
        offset, number, time_ms = last + 1, row_number, row_time_ms
    return packed, [deliveries.consumers.name_of(consumer) for consumer in consumers]


def unpack_rows(snapshot: Snapshot, deliveries: Deliveries) -> None:
    """Take over the rows of a snapshot."""
    deliveries.move(snapshot.committed)
    offset, number, time_ms = snapshot.committed, 0, 0
    for at in range(0, len(snapshot.rows), _NUMBERS):
        gap, length, state, more, later_ms, place = snapshot.rows[at : at + _NUMBERS]
        first, last = offset + gap, offset + gap + length
        offset, number, time_ms = last + 1, number + more, time_ms + later_ms
        row = Row(first, last, state & 3, state >> 2, number, time_ms, -1)
        deliveries.load(
            row,
            consumer=snapshot.consumers[place] if row.kind == LEASED else None,
            reason=snapshot.reasons[number] if row.kind == DYING else None,
        )
