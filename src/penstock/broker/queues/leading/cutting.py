"""A few messages out of a large batch, as a batch of their own.

Whole batches are handed out as they are stored, and who receives one message after the other would get each batch as
often as it has messages. Then it is cheaper to decode it once, remember that for a while, and encode what is wanted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from penstock.broker.queues.core.intervals import Interval
from penstock.errors import PenstockError
from penstock.records import BatchHeader, Record, decode_records, encode_batch

# A batch is cut if it is at least this long, and less than one in so many of its messages is wanted.
_CUT_FROM_BYTES: Final = 4 * 1024
_CUT_SHARE: Final = 4
_REMEMBERED_BYTES: Final = 16 * 1024 * 1024

Where = tuple[str, int]


def is_worth_cutting(header: BatchHeader, wanted: int) -> bool:
    return header.size >= _CUT_FROM_BYTES and wanted * _CUT_SHARE < header.count


class DecodedBatches:
    """The batches that were decoded last, up to a size in all."""

    def __init__(self) -> None:
        self._batches: OrderedDict[tuple[Where, BatchHeader], list[Record]] = OrderedDict()
        self._size = 0

    def records(self, where: Where, header: BatchHeader, batch: memoryview) -> list[Record] | None:
        """The records of a batch of a partition; None if it cannot be unpacked."""
        key = (where, header)
        found = self._batches.get(key)
        if found is not None:
            self._batches.move_to_end(key)
            return found
        try:
            found = decode_records(batch)
        except PenstockError:
            return None
        self._batches[key] = found
        self._size += header.size
        while self._size > _REMEMBERED_BYTES:
            (_, oldest), _ = self._batches.popitem(last=False)
            self._size -= oldest.size
        return found

    def cut(self, where: Where, header: BatchHeader, batch: memoryview, wanted: Sequence[Interval]) -> bytes | None:
        """A batch with only the messages that are wanted, which are by offset; at least one of them is there.

        None if it cannot be unpacked.
        """
        records = self.records(where, header, batch)
        if records is None:
            return None
        kept: list[Record] = []
        if header.count == header.last_offset_delta + 1:
            base = header.base_offset
            for first, last in wanted:
                kept += records[first - base : last - base + 1]
        else:
            for first, last in wanted:
                kept += [record for record in records if first <= record.offset <= last]
        return bytes(encode_batch(kept))
