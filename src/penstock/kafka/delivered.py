"""Which records for later have been delivered: they lie in the partition behind their batch, and bear their ids."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.partition import Partition
from penstock.broker.schedules.leading.targets import ID_HEADER
from penstock.records import decode_records, iter_batches

_PIECE_BYTES: Final = 1024 * 1024


async def ids_behind(partition: Partition, offset: int, prefix: str) -> frozenset[str]:
    """The ids of delivered records from an offset on, of those that begin with ``prefix``.

    Looks up to the end of the log and not only at what is committed, which a new leader may not know yet.
    """
    sought, log = prefix.encode(), partition.log
    found: set[str] = set()
    offset = max(offset, log.start_offset)
    while (piece := log.read(offset, _PIECE_BYTES, log.end_offset)) is not None:
        data = bytes(piece.read())
        for position, header in iter_batches(data):
            offset = header.next_offset
            batch = data[position : position + header.size]
            if not header.is_control and (header.codec or sought in batch):
                found.update(_ids_of(batch, sought))
        await asyncio.sleep(0)
    return frozenset(found)


def _ids_of(batch: bytes, sought: bytes) -> list[str]:
    return [
        value.decode()
        for record in decode_records(batch)
        for name, value in record.headers
        if name == ID_HEADER and value is not None and value.startswith(sought)
    ]
