"""The batches that hold what a queue offers, and which offsets among it hold no message.

Batches are taken as they are stored and whole, even where only a part is wanted, unless that is a small part of a large
batch. Otherwise records are looked into only where compaction has left holes. Control records, what was aborted and
what was compacted away are gaps. A batch that cannot be unpacked is handed out whole: it is for others to say so.

A delivery: what a queue offers is read, granted and handed out, in one go.

Where the messages are in a partition led here nothing waits between the offer and the grant. Where they have to be
fetched first, something else may have happened meanwhile: the grant leaves out what is taken, and it is tried again.

Looking at the first messages that a group is not done with, without taking them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import DamagedRecords, GroupNotFound
from penstock.features.queues.core.deliveries import ACKED, Kind
from penstock.features.queues.core.intervals import Interval
from penstock.features.queues.core.messages import GrantedLease, GrantLease, OfferedSpan, ReleaseDeliveries, TrimBefore
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.core.receipts import Receipt
from penstock.features.queues.leading.shard import QueueShard
from penstock.features.queues.leading.sources import BatchWalk, MessageSource, is_worth_cutting, whole_bytes
from penstock.features.queues.leases import PartitionLease
from penstock.features.queues.wire import PeekedSpan
from penstock.records import BatchHeader


class _WantedBatch:
    """What is wanted of one batch."""

    __slots__ = ("count", "data", "header", "position", "wanted")

    def __init__(self, header: BatchHeader, data: memoryview, position: int) -> None:
        self.header = header
        self.data = data
        self.position = position
        self.wanted: list[Interval] = []
        self.count = 0


class GatheredBatches:
    """What was found of an offer: deliveries by offset, gaps, and the batches."""

    def __init__(self, source: MessageSource, max_bytes: int) -> None:
        self._source = source
        self._pages = BatchWalk(source)
        self._max_bytes = max_bytes
        self._size = 0
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._batch: _WantedBatch | None = None  # the batch that something was taken from last
        self._run: tuple[memoryview, int, int] | None = None  # a piece that may still grow: data, from, to
        self._whole: bytes | None = None
        self.deliveries: list[OfferedSpan] = []
        self.gaps: list[Interval] = []

    async def take(self, offered: Sequence[OfferedSpan]) -> None:
        """Look at what is offered, by offset, as far as the bytes allow."""
        left = sum(each.size for each in offered)
        for each in sorted(offered):
            try:
                has_room = await self._take(each, left)
            except DamagedRecords:
                if not self.deliveries:
                    raise
                break  # what can be read is handed out; the rest is offered again
            if not has_room:
                break
            left -= each.size
        await self._end_batch()

    async def _take(self, offered: OfferedSpan, left: int) -> bool:
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
            elif not await self._include(header):
                return False
            elif header.count == header.last_offset_delta + 1:
                self._deliver(first, upto, count)
            else:
                await self._take_some(first, upto, count)
            left -= upto - first + 1
            first = upto + 1
        return True

    def _deliver(self, first: int, last: int, count: int) -> None:
        self.deliveries.append(OfferedSpan(first, last, count))
        assert self._batch is not None
        self._batch.wanted.append(Interval(first, last))
        self._batch.count += last - first + 1

    async def _include(self, header: BatchHeader) -> bool:
        """Have the present batch among the pieces; False if it is too much."""
        before = self._batch
        if before is not None and before.header.last_offset == header.last_offset:
            return True
        await self._end_batch()
        if before is not None and self._size + header.size > self._max_bytes:
            return False
        self._batch = _WantedBatch(header, self._pages.data, self._pages.position)
        return True

    async def _end_batch(self) -> None:
        """All that is wanted of a batch is known: take it whole, or cut it."""
        taken, self._batch = self._batch, None
        if taken is None or not taken.count:
            return
        header, data, begin = taken.header, taken.data, taken.position
        end = begin + header.size
        source = self._source
        if is_worth_cutting(header, taken.count):
            piece = await source.decoded.cut(source.where, header, data[begin:end], taken.wanted)
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

    async def _take_some(self, first: int, last: int, count: int) -> None:
        """Of a batch with holes, each message that is there."""
        pages, source = self._pages, self._source
        assert pages.header is not None
        records = await source.decoded.records(source.where, pages.header, pages.batch, first, last)
        if records is None:  # it cannot be told which are there, so all of them are
            self._deliver(first, last, count)
            return
        at = first
        for record in records:
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
        self._end_run()
        if len(self._pieces) != 1:
            return b"".join(self._pieces)
        piece = self._pieces[0]
        if isinstance(piece, memoryview):
            return whole_bytes(piece)
        return piece if isinstance(piece, bytes) else bytes(piece)


# So often an offer may turn out to be nothing but gaps, or to be taken by others, before the caller gets its turn back.
_ROUNDS_MAX: Final = 20


async def deliver(
    shard: QueueShard,
    group: str,
    *,
    consumer: str,
    max_messages: int,
    max_bytes: int,
    visibility_timeout_ms: int | None,
) -> list[PartitionLease]:
    """Lease up to ``max_messages`` of one partition, the most urgent first; `GroupNotFound` if it has to begin.

    Messages of one lane are a lease, so where there are no lanes there is one at most.
    """
    for _ in range(_ROUNDS_MAX):
        shard.check()
        queue = find_queue(shard, group)
        source = shard.source()
        start, end = await source.reach()
        if start > queue.committed:
            await shard.request(group, TrimBefore(start))
        await shard.lookout.look(shard, queue, source, max_messages, end)
        offered = queue.offer(consumer, max_messages, end, shard.now_ms())
        if not offered:
            return []
        gatherings = await _gather(source, _by_lane(queue, offered), max_bytes)
        deliveries = [each for gathering in gatherings for each in gathering.deliveries]
        gaps = [gap for gathering in gatherings for gap in gathering.gaps]
        if not deliveries and not gaps:
            return []
        grant = GrantLease(
            consumer=consumer, offered=deliveries, visibility_timeout_ms=visibility_timeout_ms, gaps=gaps
        )
        granted = await shard.request(group, grant, lambda unseen: take_back(shard, group, unseen))
        if granted.deliveries:
            return _leases(shard, granted, gatherings)
    return []


def _by_lane(queue: Queue, offered: list[OfferedSpan]) -> list[list[OfferedSpan]]:
    """What is offered, lane by lane, in the order in which the lanes are to be served."""
    pool = queue.supply.pool
    if pool is None:
        return [offered]
    by_lane: dict[int | None, list[OfferedSpan]] = {}
    for each in offered:
        by_lane.setdefault(pool.lane_at(each.first), []).append(each)
    return list(by_lane.values())


async def _gather(source: MessageSource, parts: list[list[OfferedSpan]], max_bytes: int) -> list[GatheredBatches]:
    """The messages of each part, as far as the bytes allow; of the first one at least a message."""
    gatherings: list[GatheredBatches] = []
    for part in parts:
        if max_bytes <= 0:
            break
        gathering = GatheredBatches(source, max_bytes)
        await gathering.take(part)
        gatherings.append(gathering)
        if len(parts) > 1:
            max_bytes -= len(gathering.batches())
    return gatherings


def _leases(shard: QueueShard, granted: GrantedLease, gatherings: list[GatheredBatches]) -> list[PartitionLease]:
    """What was granted, with the batches that hold it."""
    if len(gatherings) == 1:
        parts = [granted.deliveries]
    else:
        part_of = {each.first: at for at, gathering in enumerate(gatherings) for each in gathering.deliveries}
        parts = [
            tuple(each for each in granted.deliveries if part_of[each.first] == at) for at in range(len(gatherings))
        ]
    return [
        PartitionLease(shard.topic, shard.partition, granted.nonce, granted.until_ms, part, gathering.batches())
        for part, gathering in zip(parts, gatherings, strict=True)
        if part
    ]


def take_back(shard: QueueShard, group: str, granted: GrantedLease | PartitionLease) -> None:
    """The consumer is gone: have what it never saw delivered to another one at once."""
    receipts = [
        Receipt(shard.topic, shard.partition, first, last, count, granted.nonce)
        for first, last, count in granted.deliveries
    ]
    if receipts and shard.is_ready and group in shard.machines:
        shard.ask(group, ReleaseDeliveries(receipts), lambda _: None)


def find_queue(shard: QueueShard, group: str) -> Queue:
    queue = shard.machines.get(group)
    if queue is None:
        raise GroupNotFound(f"No queue group {group!r} reads {shard.topic}-{shard.partition}.")
    return queue


_STATES: Final = {Kind.LEASED: "in_flight", Kind.WAITING: "waiting", Kind.DYING: "dying"}
# Gaps are found out only by looking, so a little more is looked at than is wanted.
_SPARE: Final = 100


async def peek(queue: Queue, source: MessageSource, limit: int, max_bytes: int) -> tuple[list[PeekedSpan], bytes]:
    """Up to ``limit`` messages as spans in one state each, and the batches that hold them."""
    start, end = await source.reach()
    spans = _spans(queue, max(queue.committed, start), end, limit + _SPARE)
    gathering = GatheredBatches(source, max_bytes)
    await gathering.take([OfferedSpan(span.first, span.last, at) for at, span in enumerate(spans)])
    found: list[PeekedSpan] = []
    for first, last, at in gathering.deliveries:
        if limit <= 0:
            break
        last = min(last, first + limit - 1)
        found.append(PeekedSpan(first, last, spans[at].state, spans[at].delivery_count))
        limit -= last - first + 1
    return found, gathering.batches()


def _spans(queue: Queue, first: int, end: int, limit: int) -> list[PeekedSpan]:
    """What is not done from an offset on, in order."""
    spans: list[PeekedSpan] = []
    for row in queue.rows_from(first, end - 1):
        if row.first > first:
            spans.append(PeekedSpan(first, row.first - 1, "ready", 0))
        if row.kind != ACKED:
            spans.append(PeekedSpan(row.first, row.last, _STATES[Kind(row.kind)], row.deliveries))
        first = row.last + 1
        if sum(span.last - span.first + 1 for span in spans) >= limit:
            break
    if first < end:
        spans.append(PeekedSpan(first, end - 1, "ready", 0))
    return _cut(spans, limit)


def _cut(spans: list[PeekedSpan], limit: int) -> list[PeekedSpan]:
    kept: list[PeekedSpan] = []
    for span in spans:
        if limit <= 0:
            break
        last = min(span.last, span.first + limit - 1)
        kept.append(PeekedSpan(span.first, last, span.state, span.delivery_count))
        limit -= last - span.first + 1
    return kept
