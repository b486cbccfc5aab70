"""Some records of a batch as a batch of their own, copied by their bytes: nothing is decoded and encoded again.

The new batch keeps the first offset and the base timestamp of the whole one, so a record's own numbers stay true; what
was left out is a gap, as compaction leaves them. Format: docs/formats/record-batch.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock.errors import CorruptRecords
from penstock.records.batch import assemble_batch
from penstock.records.header import APPEND_TIME_BIT, BatchHeader
from penstock.records.varint import read_varint


def positions_of(header: BatchHeader, data: bytes, begin: int = 0) -> array[int]:
    """Where each record begins, and where the last one ends; ``data`` holds them from ``begin`` on, not compressed."""
    positions = array("I", [begin])
    append = positions.append
    position, total = begin, len(data)
    try:
        while position < total:
            if (low := data[position]) < 0x80:
                position += 1 + (low >> 1)
            elif (high := data[position + 1]) < 0x80:
                position += 2 + ((low & 0x7F) >> 1 | high << 6)
            else:
                length, position = read_varint(data, position)
                position += max(length, 0)
            append(position)
    except IndexError:
        raise CorruptRecords("The buffer ends inside a record.") from None
    if position != total or len(positions) != header.count + 1:
        raise CorruptRecords(f"A batch claims {header.count} records and has {len(positions) - 1}.")
    return positions


def slice_batch(
    header: BatchHeader, data: bytes, positions: Sequence[int], spans: Sequence[tuple[int, int]]
) -> bytearray:
    """The records between these offsets, first and last, of a batch that has no gaps; spans rise and are not empty."""
    base = header.base_offset
    view = memoryview(data)
    parts = [view[positions[first - base] : positions[last - base + 1]] for first, last in spans]
    part = header._replace(
        attributes=header.attributes & APPEND_TIME_BIT,
        last_offset_delta=spans[-1][1] - base,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=sum(last - first + 1 for first, last in spans),
    )
    return assemble_batch(part, parts)
