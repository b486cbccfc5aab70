"""Some messages out of a large batch, as a batch of their own.

Whole batches are handed out as they are stored, and who receives one message after the other would get each batch as
often as it has messages. So it is found out once where its records lie, that is remembered for a while, and the bytes
of those which are wanted are copied. Only batches with holes are decoded for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.broker.queues.core.intervals import Interval
from penstock.broker.queues.leading.kept import KeptRoom, whole_bytes
from penstock.errors import PenstockError
from penstock.records import HEADER_BYTES, BatchHeader, Codec, Record, decode_records, encode_batch
from penstock.records.batch import open_batch
from penstock.records.slicing import positions_of, slice_batch

# A batch is cut if it is at least this long, and some of it is not wanted.
_CUT_FROM_BYTES: Final = 4 * 1024
_REMEMBERED_BYTES: Final = 16 * 1024 * 1024

Where = tuple[str, int]


def is_worth_cutting(header: BatchHeader, wanted: int) -> bool:
    return header.size >= _CUT_FROM_BYTES and wanted < header.count


class _Opened(NamedTuple):
    """Bytes that hold the records of a batch, not compressed, and where in them each begins."""

    data: bytes
    positions: Sequence[int]


class DecodedBatches:
    """The batches that were looked into last, up to a size in all."""

    def __init__(self) -> None:
        self._batches: OrderedDict[tuple[Where, BatchHeader], list[Record]] = OrderedDict()
        self._size = 0
        self._opened: OrderedDict[tuple[Where, BatchHeader], _Opened] = OrderedDict()
        self._opened_size = 0
        self.room = KeptRoom()

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

    def cut(
        self, where: Where, header: BatchHeader, batch: memoryview, wanted: Sequence[Interval]
    ) -> bytes | bytearray | None:
        """A batch with only the messages that are wanted, which are by offset; at least one of them is there.

        None if it cannot be unpacked.
        """
        if header.count == header.last_offset_delta + 1 and not header.has_delete_horizon:
            opened = self._open(where, header, batch)
            return None if opened is None else slice_batch(header, *opened, wanted)
        records = self.records(where, header, batch)
        if records is None:
            return None
        kept = [record for first, last in wanted for record in records if first <= record.offset <= last]
        return encode_batch(kept)

    def _open(self, where: Where, header: BatchHeader, batch: memoryview) -> _Opened | None:
        key = (where, header)
        found = self._opened.get(key)
        if found is not None:
            self._opened.move_to_end(key)
            return found
        try:
            if header.codec is Codec.NONE:
                data = whole_bytes(batch)
                found = _Opened(data, positions_of(header, data, HEADER_BYTES))
            else:
                _, data = open_batch(batch)
                found = _Opened(data, positions_of(header, data))
        except PenstockError:
            return None
        self._opened[key] = found
        self._opened_size += len(data)
        while self._opened_size > _REMEMBERED_BYTES and len(self._opened) > 1:
            _, oldest = self._opened.popitem(last=False)
            self._opened_size -= len(oldest.data)
        return found
