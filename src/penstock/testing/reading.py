"""What a reader of committed data sees of a topic, decoded: for tests that want to look at everything at once."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.broker.broker import Broker
from penstock.records import decode_records, iter_batches
from penstock.records.batch import Headers

_READ_BYTES: Final = 1 << 20


class StoredMessage(NamedTuple):
    """A message in its topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


async def read_committed(broker: Broker, topic: str) -> list[StoredMessage]:
    """All messages of a topic that this node leads, by partition and offset; none that is not committed."""
    found: list[StoredMessage] = []
    for index in range(len(broker.metadata.topic(topic).partitions)):
        partition = broker.partition(topic, index)
        position = partition.log.start_offset
        while (piece := partition.read(position, _READ_BYTES, is_committed_only=True)) is not None:
            data = memoryview(piece.read())
            aborted: dict[int, list[int]] = {}
            for each in partition.aborted_in(position, piece.next_offset):
                aborted.setdefault(each.producer_id, []).append(each.first_offset)
            found += _visible(index, data, position, aborted)
            position = piece.next_offset
    return found


def _visible(index: int, data: memoryview, position: int, aborted: dict[int, list[int]]) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    aborting: set[int] = set()
    for at, header in iter_batches(data):
        starts = aborted.get(header.producer_id)
        if starts and starts[0] < header.next_offset:
            starts.pop(0)
            aborting.add(header.producer_id)
        if header.is_control:
            aborting.discard(header.producer_id)
        elif header.producer_id not in aborting:
            found += [
                StoredMessage(index, record.offset, record.key, record.value, record.headers, record.timestamp)
                for record in decode_records(data[at : at + header.size])
                if record.offset >= position
            ]
    return found
