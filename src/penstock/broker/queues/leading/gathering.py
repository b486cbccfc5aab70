"""The batches that hold what a queue offers, and which offsets among it hold no message.

Batches are taken as they are stored and whole, even where only a part is wanted, unless that is a small part of a large
batch. Otherwise records are looked into only where compaction has left holes. Control records, what was aborted and
what was compacted away are gaps. A batch that cannot be unpacked is handed out whole: it is for others to say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

from penstock.broker.queues.core.intervals import Interval
from penstock.broker.queues.core.messages import Offered
from penstock.broker.queues.leading.cutting import is_worth_cutting
from penstock.broker.queues.leading.sources import Found, Source
from penstock.errors import PenstockError
from penstock.records import BatchHeader, decode_records, iter_batches
from penstock.storage.aborted import AbortedRanges

_READ_BYTES_MIN: Final = 16 * 1024
_LOOK_BYTES_MAX: Final = 4 * 1024 * 1024


class _Pages:
    """A walk through the batches of a source, only ever forward."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._batches: Iterator[tuple[int, BatchHeader]] = iter(())
        self._aborted = AbortedRanges([])
        self.data = memoryview(b"")
        self.position = 0
        self.header: BatchHeader | None = None

    async def batch_at(self, offset: int, wanted: int, max_bytes: int) -> BatchHeader | None:
        """The batch that holds an offset, or the first one behind it; None if there is none yet.

        ``wanted`` tells how many messages from there on are, so that not much more than those is read.
        """
        if self.header is not None and self.header.next_offset > offset:
            return self.header
        if self._advance(offset):
            return self.header
        size = max(min(wanted * self._source.message_bytes + _READ_BYTES_MIN, max_bytes), 1)
        found = await self._source.read(offset, size)
        if found is None:
            self.header = None
            return None
        self._open(found)
        return self.header if self._advance(offset) else None

    def _open(self, found: Found) -> None:
        self.data = memoryview(found.data)
        self._aborted = AbortedRanges(found.aborted)
        self._batches = iter_batches(self.data)

    def _advance(self, offset: int) -> bool:
        for self.position, header in self._batches:  # noqa: B020 - where the walk stands is what is kept
            self.header = header
            if header.next_offset > offset:
                self._source.message_bytes = max(header.size // max(header.count, 1), 1)
                return True
        return False

    @property
    def is_void(self) -> bool:
        """Whether the present batch holds no message at all."""
        header = self.header
        return header is None or header.is_control or header in self._aborted

    @property
    def batch(self) -> memoryview:
        assert self.header is not None
        return self.data[self.position : self.position + self.header.size]


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
        self._pages = _Pages(source)
        self._max_bytes = max_bytes
        self._size = 0
        self._pieces: list[bytes | memoryview] = []
        self._batch: _Taken | None = None  # the batch that something was taken from last
        self._run: tuple[memoryview, int, int] | None = None  # a piece that may still grow: data, from, to
        self.deliveries: list[Offered] = []
        self.gaps: list[Interval] = []

    async def take(self, offered: Sequence[Offered]) -> None:
        """Look at what is offered, by offset, as far as the bytes allow."""
        left = sum(each.size for each in offered)
        for each in sorted(offered):
            if not await self._take(each, left):
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
        self._end_batch()
        self._end_run()
        if len(self._pieces) != 1:
            return b"".join(self._pieces)
        piece = self._pieces[0]
        if isinstance(piece, bytes):
            return piece
        whole = piece.obj
        return whole if isinstance(whole, bytes) and len(whole) == len(piece) else bytes(piece)


async def read_labels(source: Source, wanted: Interval) -> list[int | None]:
    """The keys of messages as hashes, from the first one wanted on.

    None for no key, where there is no message, and where it cannot be unpacked: what goes to the dead letters anyway
    holds up nobody.
    """
    pages = _Pages(source)
    labels: list[int | None] = []
    at = wanted.first
    while at <= wanted.last:
        left = wanted.last - at + 1
        header = await pages.batch_at(at, left, _LOOK_BYTES_MAX)
        if header is None:
            break
        upto = min(header.last_offset, wanted.last)
        found: list[int | None] = [None] * (upto - at + 1)
        if not pages.is_void and header.base_offset <= upto:
            for record in source.decoded.records(source.where, header, pages.batch) or ():
                if at <= record.offset <= upto and record.key is not None:
                    found[record.offset - at] = label_of(record.key)
        labels += found
        at = upto + 1
    return labels


def label_of(key: bytes) -> int:
    """A key as a number; two keys with the same one are only kept in order among each other.

    It has 60 bits, for which Python needs 32 bytes; 64 would take 48, and a million of these may be in flight.
    """
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 4
