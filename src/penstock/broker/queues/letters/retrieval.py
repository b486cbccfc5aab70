"""Messages out of a log by their offsets: each of them, or the certainty that it is gone.

A new leader may not know yet how far its log is committed. Then nothing is said of what cannot be read: it is tried
again, because whoever asks would take silence for a message that retention removed.

What its producer packed so that nobody can unpack it is a message all the same. It is told of without key and value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import OffsetNotAvailable, OffsetOutOfRange, PenstockError
from penstock.records import BatchHeader, Record, decode_records, iter_batches
from penstock.storage.aborted import AbortedRanges

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

UNREADABLE: Final = "penstock-dlq-error"  # a header that tells why there is no key and no value


class Retrieved(NamedTuple):
    """The messages that there are before ``next_offset``; what is not among them is gone."""

    records: list[Record]
    next_offset: int


async def retrieve(broker: Broker, topic: str, index: int, first: int, last: int, max_bytes: int) -> Retrieved:
    """Messages between two offsets, both included, about as many as fit into ``max_bytes``.

    `OffsetNotAvailable` if they cannot be read at the moment. All that is asked for must have been readable once.
    """
    try:
        found = await broker.remote.read(topic, index, first, max_bytes)
    except OffsetOutOfRange:
        start = await broker.remote.locate(topic, index, "earliest")
        if start <= first:
            raise OffsetNotAvailable(f"{topic}-{index} cannot be read at offset {first} now. Try again.") from None
        return Retrieved([], min(start, last + 1))
    if not found.data:
        raise OffsetNotAvailable(f"It is not known yet up to where {topic}-{index} is committed. Try again.")
    records: list[Record] = []
    next_offset = first
    aborted = AbortedRanges(found.aborted)
    for position, header in iter_batches(found.data):
        if header.next_offset <= first:
            continue
        if header.base_offset > last:
            next_offset = last + 1
            break
        next_offset = header.next_offset
        if not header.is_control and header not in aborted:
            batch = found.data[position : position + header.size]
            records += [record for record in unpacked(batch, header, first, last) if first <= record.offset <= last]
    return Retrieved(records, min(next_offset, last + 1))


def unpacked(batch: memoryview, header: BatchHeader, first: int, last: int) -> list[Record]:
    """The records of a batch; if it cannot be unpacked, one for each offset in it between two, saying why."""
    try:
        return decode_records(batch)
    except PenstockError as error:
        why = (UNREADABLE, f"It cannot be unpacked: {error.message}".encode())
        offsets = range(max(first, header.base_offset), min(last, header.last_offset) + 1)
        return [Record(offset, header.base_timestamp, None, None, (why,)) for offset in offsets]
