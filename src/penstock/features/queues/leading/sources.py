"""Batches of which only a part was handed out, kept so that the next part need not be read again.

Each source has its own; all of a node together have a size. What is kept is committed, so it never changes, and it goes
with its source when the partition is led elsewhere.

Some messages out of a large batch, as a batch of their own.

Whole batches are handed out as they are stored, and who receives one message after the other would get each batch as
often as it has messages. So it is found out once where its records lie, that is remembered for a while, and the bytes
of those which are wanted are copied. Only batches with holes are decoded for it. What takes long is done in a thread,
and once for all who ask meanwhile.

The messages that a queue hands out, wherever they are: in a partition led here, or for a moment elsewhere.

A walk through the batches of a source, only ever forward, reading not much more than is wanted.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from penstock.errors import LeaderNotAvailable, MessageTooLarge, PenstockError
from penstock.features.queues.core.intervals import Interval
from penstock.partitions.access import Partitions, Where
from penstock.partitions.beside import beside
from penstock.partitions.partition import Partition
from penstock.records import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    Record,
    decode_records,
    encode_batch,
    iter_batches,
    parse_header,
)
from penstock.records.batch import open_batch, positions_of, slice_batch
from penstock.records.compression import DECOMPRESSED_BYTES_MAX
from penstock.storage.aborted import AbortedRanges, AbortedTransaction

_BYTES_MAX: Final = 16 * 1024 * 1024


def whole_bytes(view: memoryview) -> bytes:
    """The bytes of a view; no copy where it is a view of all of some."""
    whole = view.obj
    return whole if isinstance(whole, bytes) and len(whole) == len(view) else bytes(view)


class KeptBytes:
    """How much all sources keep; what was used the longest ago goes first."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size = 0
        self._order: OrderedDict[tuple[KeptBatches, int], int] = OrderedDict()

    def enter(self, batches: KeptBatches, base: int, size: int) -> None:
        self._order[batches, base] = size
        self._size += size
        while self._size > self._bytes_max and len(self._order) > 1:
            (oldest, at), gone = self._order.popitem(last=False)
            self._size -= gone
            oldest.drop(at)

    def touch(self, batches: KeptBatches, base: int) -> None:
        self._order.move_to_end((batches, base))


class KeptBatches:
    """Those of one source, by their first offset."""

    def __init__(self, room: KeptBytes) -> None:
        self._room = room
        self._starts: list[int] = []
        self._batches: dict[int, tuple[int, bytes]] = {}

    def at(self, offset: int) -> bytes | None:
        """The batch that holds an offset."""
        place = bisect_right(self._starts, offset) - 1
        if place < 0:
            return None
        base = self._starts[place]
        last, batch = self._batches[base]
        if last < offset:
            return None
        self._room.touch(self, base)
        return batch

    def put(self, base: int, last: int, batch: memoryview) -> None:
        if base not in self._batches:
            insort(self._starts, base)
            self._batches[base] = (last, whole_bytes(batch))
            self._room.enter(self, base, len(batch))

    def drop(self, base: int) -> None:
        del self._batches[base]
        self._starts.remove(base)


# A batch is cut if it is at least this long, and some of it is not wanted.
_CUT_FROM_BYTES: Final = 4 * 1024
_REMEMBERED_BYTES: Final = 16 * 1024 * 1024
# What may be opened between two turns of the event loop.
_QUICK_RECORDS: Final = 50_000
_QUICK_BYTES: Final = 1024 * 1024


def is_worth_cutting(header: BatchHeader, wanted: int) -> bool:
    return header.size >= _CUT_FROM_BYTES and wanted < header.count


class OpenedBatch(NamedTuple):
    """Bytes that hold the records of a batch, not compressed, and where in them each begins."""

    data: bytes
    positions: array[int]

    @property
    def size(self) -> int:
        return len(self.data) + self.positions.itemsize * len(self.positions)


class DecodedBatches:
    """The batches that were looked into last, up to a size in all."""

    def __init__(self) -> None:
        self._opened: OrderedDict[tuple[Where, BatchHeader], OpenedBatch] = OrderedDict()
        self._size = 0
        self._opening: dict[tuple[Where, BatchHeader], asyncio.Task[OpenedBatch | None]] = {}
        self.room = KeptBytes()

    async def records(
        self, where: Where, header: BatchHeader, batch: memoryview, first: int, last: int
    ) -> list[Record] | None:
        """The records of a batch of a partition between two offsets of it; None if it cannot be unpacked."""
        if first > header.base_offset or last < header.last_offset:
            piece = await self.cut(where, header, batch, [Interval(first, last)]) if is_dense(header) else None
            if piece is not None:
                batch = memoryview(piece)
        try:
            records = await beside(batch, partial(decode_records, batch))
        except PenstockError:
            return None
        return [record for record in records if first <= record.offset <= last]

    async def cut(
        self, where: Where, header: BatchHeader, batch: memoryview, wanted: Sequence[Interval]
    ) -> bytes | bytearray | None:
        """A batch with only the messages that are wanted, which are by offset; at least one of them is there.

        None if it cannot be unpacked.
        """
        if is_dense(header):
            opened = await self.open(where, header, batch)
            return None if opened is None else slice_batch(header, *opened, wanted)
        try:
            return await beside(batch, partial(_encoded_anew, batch, wanted))
        except PenstockError:
            return None

    async def open(self, where: Where, header: BatchHeader, batch: memoryview) -> OpenedBatch | None:
        """The records of a batch that has no holes, and where each of them begins; None if it cannot be unpacked."""
        key = (where, header)
        found = self._opened.get(key)
        if found is not None:
            self._opened.move_to_end(key)
            return found
        try:
            found = _open(header, batch, _QUICK_BYTES) if _may_be_quick(header) else None
        except MessageTooLarge:
            found = None
        except PenstockError:
            return None
        if found is None:
            return await self._open_beside(key, batch)
        self._remember(key, found)
        return found

    async def _open_beside(self, key: tuple[Where, BatchHeader], batch: memoryview) -> OpenedBatch | None:
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.ensure_future(self._open_in_thread(key, batch))
            opening.add_done_callback(lambda _: self._opening.pop(key))
        return await asyncio.shield(opening)

    async def _open_in_thread(self, key: tuple[Where, BatchHeader], batch: memoryview) -> OpenedBatch | None:
        try:
            found = await asyncio.to_thread(_open, key[1], batch)
        except PenstockError:
            return None
        self._remember(key, found)
        return found

    def _remember(self, key: tuple[Where, BatchHeader], found: OpenedBatch) -> None:
        self._opened[key] = found
        self._size += found.size
        while self._size > _REMEMBERED_BYTES and len(self._opened) > 1:
            _, oldest = self._opened.popitem(last=False)
            self._size -= oldest.size


def is_dense(header: BatchHeader) -> bool:
    """Whether a batch has a record for each of its offsets, which are as they were written."""
    return header.count == header.last_offset_delta + 1 and not header.has_delete_horizon


def _may_be_quick(header: BatchHeader) -> bool:
    return header.count <= _QUICK_RECORDS and header.size <= _QUICK_BYTES


def _open(header: BatchHeader, batch: memoryview, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> OpenedBatch:
    if header.codec is Codec.NONE:
        data = whole_bytes(batch)
        return OpenedBatch(data, positions_of(header, data, HEADER_BYTES))
    _, data = open_batch(batch, limit_bytes)
    return OpenedBatch(data, positions_of(header, data))


def _encoded_anew(batch: memoryview, wanted: Sequence[Interval]) -> bytearray:
    records = decode_records(batch)
    return encode_batch([record for first, last in wanted for record in records if first <= record.offset <= last])


_MESSAGE_BYTES_GUESS: Final = 1_200


class Reach(NamedTuple):
    """What a partition holds that may be handed out: from the log's start up to the last stable offset."""

    start: int
    end: int


class StoredBatches(NamedTuple):
    """Batches as stored, and the aborted transactions among them."""

    data: bytes | memoryview
    aborted: list[AbortedTransaction]


class MessageSource(Protocol):
    """The data of one partition."""

    where: Where
    message_bytes: int  # about how long messages are here, from what was read last
    decoded: DecodedBatches

    @property
    def known_end(self) -> int:
        """Up to where there was something to hand out when somebody looked last."""

    async def reach(self) -> Reach: ...

    def keep(self, base: int, last: int, batch: memoryview) -> None:
        """More of a batch will be wanted soon, from its first offset to its last."""

    async def written_ms(self, offset: int) -> int | None:
        """About when the message at an offset, or the first one behind it, was written."""

    async def read(self, offset: int, max_bytes: int) -> StoredBatches | None:
        """Whole batches from the one that holds ``offset`` or comes behind it; None if there are none yet."""


class LedSource:
    """A partition that is led here. Nothing in it ever waits."""

    def __init__(self, partition: Partition, decoded: DecodedBatches) -> None:
        self.partition = partition
        self.where: Where = (partition.id.topic, partition.id.partition)
        self.decoded = decoded
        self._kept = KeptBatches(decoded.room)
        self.message_bytes = _MESSAGE_BYTES_GUESS

    @property
    def known_end(self) -> int:
        return self.partition.last_stable_offset

    async def reach(self) -> Reach:
        return Reach(self.partition.log.start_offset, self.partition.last_stable_offset)

    async def read(self, offset: int, max_bytes: int) -> StoredBatches | None:
        partition = self.partition
        kept = self._kept.at(offset)
        if kept is not None and partition.is_leader:
            return StoredBatches(kept, [])
        found = partition.read(offset, max_bytes, is_committed_only=True)
        if found is None:
            return None
        return StoredBatches(found.read(), partition.aborted_in(offset, found.next_offset))

    def keep(self, base: int, last: int, batch: memoryview) -> None:
        self._kept.put(base, last, batch)

    async def written_ms(self, offset: int) -> int | None:
        found = self.partition.read(offset, 1, is_committed_only=True)
        if found is None:
            return None
        return parse_header(found.file.read(found.position, HEADER_BYTES)).base_timestamp


class RemoteSource:
    """A partition that another node leads, as happens for a moment when leaders change."""

    def __init__(self, topic: str, partition: int, remote: Partitions, decoded: DecodedBatches) -> None:
        self.where: Where = (topic, partition)
        self.decoded = decoded
        self._remote = remote
        self.message_bytes = _MESSAGE_BYTES_GUESS
        self.known_end = 0

    async def reach(self) -> Reach:
        extent = (await self._remote.extents([self.where])).get(self.where)
        if extent is None:
            raise LeaderNotAvailable(f"{self.where[0]}-{self.where[1]} cannot be read now. Try again in a moment.")
        self.known_end = extent.last_stable_offset
        return Reach(extent.log_start_offset, extent.last_stable_offset)

    async def read(self, offset: int, max_bytes: int) -> StoredBatches | None:
        found = await self._remote.read(*self.where, offset, max_bytes)
        return StoredBatches(found.data, found.aborted) if found.data else None

    def keep(self, base: int, last: int, batch: memoryview) -> None:
        """It is only for a moment that messages come from elsewhere."""

    async def written_ms(self, offset: int) -> int | None:
        found = await self.read(offset, 1)
        return None if found is None else parse_header(found.data).base_timestamp

    async def await_more(self, wait_ms: int) -> None:
        """Return once there is more than was known, or after a while."""
        await self._remote.await_more({self.where: self.known_end}, wait_ms)


_READ_BYTES_MIN: Final = 16 * 1024


class BatchWalk:
    """Where the walk stands."""

    def __init__(self, source: MessageSource) -> None:
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

    def _open(self, found: StoredBatches) -> None:
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
