"""The batches that hold what a queue offers, and which offsets among it hold no message.

Batches are taken as they are stored and whole, even where only a part is wanted, unless that is a small part of a large
batch. Otherwise records are looked into only where compaction has left holes. Control records, what was aborted and
what was compacted away are gaps. A batch that cannot be unpacked is handed out whole: it is for others to say so.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.queues.core.intervals import Interval
from penstock.broker.queues.core.messages import Offered
from penstock.broker.queues.leading.cutting import is_worth_cutting
from penstock.broker.queues.leading.kept import whole_bytes
from penstock.broker.queues.leading.pages import Pages
from penstock.broker.queues.leading.sources import Source
from penstock.errors import DamagedRecords, PenstockError
from penstock.records import BatchHeader, decode_records


class _Taken:
    """What is wanted of one batch."""

    __slots__ = ("count", "data", "header", "position", "wanted")

    def __init__(self, header: BatchHeader, data: memoryview, position: int) -> None:
        self.header = header
        self.data = data
        self.position = position
        self.wanted: list[Interval] = []
        self.count = 0


class Gathering:
    """What was found of an offer: deliveries by offset, gaps, and the batches."""

    def __init__(self, source: Source, max_bytes: int) -> None:
        self._source = source
        self._pages = Pages(source)
        self._max_bytes = max_bytes
        self._size = 0
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._batch: _Taken | None = None  # the batch that something was taken from last
        self._run: tuple[memoryview, int, int] | None = None  # a piece that may still grow: data, from, to
        self._whole: bytes | None = None
        self.deliveries: list[Offered] = []
        self.gaps: list[Interval] = []

    async def take(self, offered: Sequence[Offered]) -> None:
        """Look at what is offered, by offset, as far as the bytes allow."""
        left = sum(each.size for each in offered)
        for each in sorted(offered):
            try:
                has_room = await self._take(each, left)
            except DamagedRecords:
                if not self.deliveries:
                    raise
                return  # what can be read is handed out; the rest is offered again
            if not has_room:
                return
            left -= each.size

    async def _take(self, offered: Offered, left: int) -> bool:
        first, last, count = offered
        pages = self._pages
        while first <= last:
            header = await pages.batch_at(first, left, self._max_bytes - self._size)
            if header is None:
                return False
            if header.base_offset > first:
                self._skip(first, min(last, header.base_offset - 1))
                left -= header.base_offset - first
                first = header.base_offset
                continue
            upto = min(last, header.last_offset)
            if pages.is_void:
                self._skip(first, upto)
            elif not self._include(header):
                return False
            elif header.count == header.last_offset_delta + 1:
                self._deliver(first, upto, count)
            else:
                self._take_some(first, upto, count)
            left -= upto - first + 1
            first = upto + 1
        return True

    def _deliver(self, first: int, last: int, count: int) -> None:
        self.deliveries.append(Offered(first, last, count))
        assert self._batch is not None
        self._batch.wanted.append(Interval(first, last))
        self._batch.count += last - first + 1

    def _include(self, header: BatchHeader) -> bool:
        """Have the present batch among the pieces; False if it is too much."""
        before = self._batch
        if before is not None and before.header.last_offset == header.last_offset:
            return True
        self._end_batch()
        if before is not None and self._size + header.size > self._max_bytes:
            return False
        self._batch = _Taken(header, self._pages.data, self._pages.position)
        return True

    def _end_batch(self) -> None:
        """All that is wanted of a batch is known: take it whole, or cut it."""
        taken, self._batch = self._batch, None
        if taken is None or not taken.count:
            return
        header, data, begin = taken.header, taken.data, taken.position
        end = begin + header.size
        source = self._source
        if is_worth_cutting(header, taken.count):
            piece = source.decoded.cut(source.where, header, data[begin:end], taken.wanted)
            if piece is not None:
                source.keep(header.base_offset, header.last_offset, data[begin:end])
                self._end_run()
                self._pieces.append(piece)
                self._size += len(piece)
                return
        self._size += header.size
        if self._run is not None and self._run[0] is data and self._run[2] == begin:
            self._run = (data, self._run[1], end)
        else:
            self._end_run()
            self._run = (data, begin, end)

    def _end_run(self) -> None:
        if self._run is not None:
            data, begin, end = self._run
            self._pieces.append(data[begin:end])
            self._run = None

    def _take_some(self, first: int, last: int, count: int) -> None:
        """Of a batch with holes, each message that is there."""
        try:
            records = decode_records(self._pages.batch)
        except PenstockError:  # nobody can tell which are there, so all of them are
            self._deliver(first, last, count)
            return
        at = first
        for record in records:
            if first <= record.offset <= last:
                self._skip(at, record.offset - 1)
                self._deliver(record.offset, record.offset, count)
                at = record.offset + 1
        self._skip(at, last)

    def _skip(self, first: int, last: int) -> None:
        if first <= last:
            self.gaps.append(Interval(first, last))

    def batches(self) -> bytes:
        """The batches, one behind the other."""
        if self._whole is None:
            self._whole = self._joined()
        return self._whole

    def _joined(self) -> bytes:
        self._end_batch()
        self._end_run()
        if len(self._pieces) != 1:
            return b"".join(self._pieces)
        piece = self._pieces[0]
        if isinstance(piece, memoryview):
            return whole_bytes(piece)
        return piece if isinstance(piece, bytes) else bytes(piece)
