"""The messages that a queue hands out, wherever they are led, and what a queue has to know of them before it chooses.

Batches of which only a part was handed out are kept, so that the next part need not be read again; all of a node
together have a size. Some messages out of a large batch become a batch of their own: it is found out once where its
records lie, and the bytes of those which are wanted are copied. What takes long is done in a thread, once for all that
ask meanwhile.

Labels are keys for key order, lanes for priorities, tenants for fairness. Where only lanes are wanted, a batch that
has one priority is recognised by its bytes: either no message of it names any, or all of them end with the same
header, as our doors and the client write it. Others are taken apart, once. Key order needs to know only as much as is
handed out. Lanes need to know of everything, because an urgent message may be the last of a million: a receive looks
at the next few ten thousand messages first, and what is behind them is looked at in the background, a piece at a time.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol

from penstock.consensus.queue_config import Lanes, Order, QueueSettings
from penstock.errors import LeaderNotAvailable, MessageTooLarge, PenstockError
from penstock.features.queues.core.intervals import Interval
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.core.shares import LabelRun
from penstock.partitions.access import Partitions, Where
from penstock.partitions.beside import beside
from penstock.partitions.partition import Partition
from penstock.priorities import NORMAL, PRIORITIES, PRIORITY_HEADER, lane_of_headers
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
from penstock.records.varint import read_varint, varlong_bytes
from penstock.storage.aborted import AbortedRanges, AbortedTransaction
from penstock.supervision import Supervision

log = logging.getLogger(__name__)


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


_LOOK_BYTES_MAX: Final = 4 * 1024 * 1024
_NAME: Final = PRIORITY_HEADER.encode()
_HEADER: Final = varlong_bytes(len(_NAME)) + _NAME
_TAILS: Final = tuple(_HEADER + varlong_bytes(len(name)) + name.encode() for name in PRIORITIES)


class Labels(NamedTuple):
    """What was found of ``size`` neighbours; keys and runs only where they are wanted."""

    size: int
    keys: Sequence[int | None]
    runs: Sequence[LabelRun]


async def read_labels(source: MessageSource, wanted: Interval, settings: QueueSettings) -> Labels:
    """The labels of messages from the first one wanted on, as far as one look reaches.

    What holds no message, or cannot be unpacked, is normal and has no key: it goes out as a gap or to the dead letters,
    and holds up no other.
    """
    pages = BatchWalk(source)
    keys: list[int | None] = []
    runs: list[LabelRun] = []
    at, size = wanted.first, 0
    while at <= wanted.last and size < _LOOK_BYTES_MAX:
        header = await pages.batch_at(at, wanted.last - at + 1, _LOOK_BYTES_MAX)
        if header is None:
            break
        upto = min(header.last_offset, wanted.last)
        is_void = pages.is_void or header.base_offset > upto
        if is_void:
            lane: int | None = NORMAL
        elif settings.order is Order.NONE and not settings.fair_by:
            lane = await _lane_of_page(source, pages, max(at, header.base_offset), upto)
        else:
            lane = None
        records: Sequence[Record] = ()
        if lane is None:
            records = await source.decoded.records(source.where, header, pages.batch, at, upto) or ()
        if settings.order is Order.NONE and not settings.fair_by:
            _add_lanes(runs, at, upto, lane, records)
        else:
            _add_records(keys, runs, at, upto, records, settings)
        size += header.size
        at = upto + 1
    return Labels(at - wanted.first, keys, runs)


def _add_lanes(runs: list[LabelRun], first: int, last: int, lane: int | None, records: Sequence[Record]) -> None:
    if lane is not None:
        _extend(runs, last - first + 1, lane, None)
        return
    at = first
    for record in records:
        if record.offset > at:
            _extend(runs, record.offset - at, NORMAL, None)
        _extend(runs, 1, lane_of_headers(record.headers), None)
        at = record.offset + 1
    if at <= last:
        _extend(runs, last - at + 1, NORMAL, None)


def _add_records(
    keys: list[int | None],
    runs: list[LabelRun],
    first: int,
    last: int,
    records: Sequence[Record],
    settings: QueueSettings,
) -> None:
    has_lanes, is_keyed = settings.lanes is Lanes.ON, settings.order is Order.KEY
    found: list[Record | None] = [None] * (last - first + 1)
    for record in records:
        found[record.offset - first] = record
    if is_keyed:
        keys += [None if each is None or each.key is None else label_of(each.key) for each in found]
    if settings.has_shares:
        for each in found:
            lane = lane_of_headers(each.headers) if has_lanes and each is not None else NORMAL
            _extend(runs, 1, lane, None if each is None else _tenant_of(each, settings))


def _tenant_of(record: Record, settings: QueueSettings) -> int | None:
    name = settings.fair_header
    if name is None:
        return label_of(record.key) if settings.fair_by and record.key is not None else None
    value = dict(record.headers).get(name) if record.headers else None
    return None if value is None else label_of(value)


def _extend(runs: list[LabelRun], size: int, lane: int, tenant: int | None) -> None:
    if runs and runs[-1].lane == lane and runs[-1].tenant == tenant:
        runs[-1] = LabelRun(runs[-1].size + size, lane, tenant)
    else:
        runs.append(LabelRun(size, lane, tenant))


async def _lane_of_page(source: MessageSource, pages: BatchWalk, first: int, last: int) -> int | None:
    """The lane of all messages of the present batch between two offsets; None if they have to be asked one by one.

    What cannot be unpacked is normal.
    """
    header = pages.header
    assert header is not None
    whole = pages.data.obj
    if header.codec is Codec.NONE and isinstance(whole, bytes) and len(whole) == len(pages.data):
        return lane_of_records(header.count, whole, pages.position + HEADER_BYTES, pages.position + header.size)
    if not is_dense(header):
        return None
    opened = await source.decoded.open(source.where, header, pages.batch)
    if opened is None:
        return NORMAL
    begin, end = opened.positions[first - header.base_offset], opened.positions[last - header.base_offset + 1]
    return lane_of_records(last - first + 1, opened.data, begin, end)


def lane_of_records(count: int, data: bytes, begin: int, end: int) -> int | None:
    """The lane that all of so many records have; None if that cannot be told without decoding them."""
    named = data.count(_NAME, begin, end)
    if not named:
        return NORMAL
    if named != count:
        return None
    lane = next((lane for lane, tail in enumerate(_TAILS) if data.endswith(tail, begin, end)), None)
    return lane if lane is not None and _is_each(data, _TAILS[lane], begin, end) else None


def _is_each(data: bytes, tail: bytes, position: int, total: int) -> bool:
    """Whether every record ends with these bytes. They end with a letter, and no record without headers does."""
    length = len(tail)
    startswith = data.startswith
    try:
        while position < total:
            if (low := data[position]) < 0x80:
                position += 1 + (low >> 1)
            elif (high := data[position + 1]) < 0x80:
                position += 2 + ((low & 0x7F) >> 1 | high << 6)
            else:
                size, position = read_varint(data, position)
                position += size
            if not startswith(tail, position - length):
                return False
    except IndexError:
        return False
    return position == total


def label_of(key: bytes) -> int:
    """A key as a number; two keys with the same one are only kept in order among each other.

    It has 60 bits, for which Python needs 32 bytes; 64 would take 48, and a million of these may be in flight.
    """
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 4


_PIECES_AT_ONCE: Final = 4  # that a receive looks at itself, of up to 10,000 messages or 4 MiB each
_PAUSE_SECONDS: Final = 0.001  # between pieces in the background


class IndexedShard(Protocol):
    """The shard whose queues look ahead."""

    machines: dict[str, Queue]

    @property
    def is_ready(self) -> bool: ...
    def source(self) -> MessageSource: ...
    def pass_on(self, group: str) -> None: ...


class LabelIndexer:
    """What looks ahead for the groups of one partition."""

    def __init__(self, loop: asyncio.AbstractEventLoop, supervision: Supervision) -> None:
        self._supervision = supervision
        self._loop = loop
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def look(self, shard: IndexedShard, queue: Queue, source: MessageSource, limit: int, end: int) -> None:
        """Tell a queue what it needs to know to hand out ``limit`` messages; the rest goes on in the background."""
        if queue.settings.order is Order.NONE and not queue.settings.has_shares:
            return
        pieces = 0
        while await _look_once(queue, source, limit, end):
            pieces += 1
            if pieces >= _PIECES_AT_ONCE and queue.supply.pool is not None and queue.supply.pool.shares.total:
                self._begin(queue.id, self._look_ahead(shard, queue))
                return

    def _begin(self, group: str, looking: Coroutine[Any, Any, None]) -> None:
        if group in self._tasks:
            looking.close()
            return
        task = self._tasks[group] = self._loop.create_task(looking)
        self._supervision.watch("looking ahead in queues", task)
        task.add_done_callback(lambda done: self._tasks.pop(group) if self._tasks.get(group) is done else None)

    async def _look_ahead(self, shard: IndexedShard, queue: Queue) -> None:
        try:
            while shard.is_ready and shard.machines.get(queue.id) is queue:
                source = shard.source()
                if not await _look_once(queue, source, 1, source.known_end):
                    break
                shard.pass_on(queue.id)
                await asyncio.sleep(_PAUSE_SECONDS)
        except PenstockError as error:  # led elsewhere for a moment; the next receive begins again
            log.debug("Group %s looks no further for now: %s", queue.id, error.message)


async def _look_once(queue: Queue, source: MessageSource, limit: int, end: int) -> bool:
    """Look at one piece; False if there is nothing to look at."""
    wanted = queue.unseen(limit, end)
    if wanted is None:
        return False
    settings = queue.settings
    labels = await read_labels(source, wanted, settings)
    if not labels.size:
        return False
    still = queue.unseen(limit, end)
    # It was not told otherwise meanwhile, and it still wants to know the same.
    if still is not None and still.first == wanted.first and queue.settings is settings:
        queue.see(wanted.first, labels.keys, labels.runs)
    return True
