"""What this node does for the queues that it leads, asked by itself or by other nodes: deliver, settle, order,
describe.

A delivery: what a queue offers is read, granted and handed out, in one go. Where the messages are in a partition led
here nothing waits between the offer and the grant. Where they have to be fetched first, something else may have
happened meanwhile: the grant leaves out what is taken, and it is tried again.

Batches are taken as they are stored and whole, even where only a part is wanted, unless that is a small part of a
large batch. Otherwise records are looked into only where compaction has left holes. Control records, what was aborted
and what was compacted away are gaps. A batch that cannot be unpacked is handed out whole: the consumer is told so.

Precedence between partitions: lanes hold within a partition, so a receive that goes through several of them asks those
first whose next message is critical; the others come in their turn. A few receives in a row may do so, and then one
goes by turn, so that a partition which only ever has critical messages cannot keep the others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from penstock.consensus.queue_config import Lanes
from penstock.errors import DamagedRecords, GroupNotFound, InvalidRequest, PenstockError
from penstock.features.queues.core.deliveries import ACKED, LEASED, Kind
from penstock.features.queues.core.intervals import Interval
from penstock.features.queues.core.messages import (
    SECRET_BYTES,
    AckDeliveries,
    BeginQueue,
    ConfigureQueue,
    ExtendLeases,
    ForgetQueue,
    GrantedLease,
    GrantLease,
    JudgedReceipts,
    NackDeliveries,
    OfferedSpan,
    PauseQueue,
    PurgeBefore,
    Receipt,
    RejectDeliveries,
    ReleaseDeliveries,
    SeekQueue,
    TrimBefore,
)
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.core.shares import LabelPool
from penstock.features.queues.leading.shard import QueueCoordinator, QueueShard, Waiter
from penstock.features.queues.leading.sources import BatchWalk, MessageSource, is_worth_cutting, whole_bytes
from penstock.features.queues.leases import Attempts, PartitionLease
from penstock.features.queues.wire import (
    ABANDON,
    AWAIT_READY,
    DESCRIBE,
    ORDER,
    PEEK,
    SETTLE,
    TAKE,
    AbandonAttempt,
    AwaitReady,
    BeginGroup,
    DescribeGroups,
    ForgetGroup,
    GroupReport,
    GroupReports,
    LaneStats,
    OrderGroup,
    PartitionProblem,
    PartitionStats,
    PauseGroup,
    PeekedSpan,
    PeekedSpans,
    PeekGroup,
    PurgeGroup,
    SeekGroup,
    SettledParts,
    SettleReceipts,
    TakeMessages,
    TakenLease,
    TakenLeases,
)
from penstock.machines.messages import Request
from penstock.machines.ports import Ports
from penstock.network.frames import Failure
from penstock.network.port import Nothing, Peers, Reply
from penstock.partitions.access import SinceTime, Start
from penstock.priorities import PRIORITIES
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
        await shard.indexer.look(shard, queue, source, max_messages, end)
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


# Messages in flight are counted row by row, so of very many rows only the first ones are.
_ROWS_MAX: Final = 50_000


async def lanes_of(queue: Queue, source: MessageSource, now_ms: int) -> tuple[LaneStats, ...]:
    """A row for each lane, the most urgent first; none where the group has no lanes."""
    pool = queue.supply.pool
    if pool is None or queue.settings.lanes is Lanes.OFF:
        return ()
    ready = [0] * len(PRIORITIES)
    first: list[int | None] = [None] * len(PRIORITIES)
    for lane, amount, offset in pool.free_intervals():
        ready[lane] += amount
        oldest = first[lane]
        first[lane] = offset if oldest is None else min(oldest, offset)
    in_flight = _in_flight(queue, pool)
    found: list[LaneStats] = []
    for lane, name in enumerate(PRIORITIES):
        pace, oldest = pool.paces.get(lane), first[lane]
        found.append(
            LaneStats(
                lane=name,
                ready=ready[lane],
                in_flight=in_flight[lane],
                served=0 if pace is None else pace.total,
                served_per_second=0.0 if pace is None else round(pace.per_second(now_ms), 3),
                last_served_ms=None if pace is None else pace.last_ms,
                oldest_ms=None if oldest is None else await source.written_ms(oldest),
            )
        )
    return tuple(found)


def unseen_of(queue: Queue, end: int) -> int:
    """How many messages are not looked at yet."""
    if queue.supply.pool is None:
        return 0
    return max(0, end - max(queue.supply.known_to, queue.committed))


def _in_flight(queue: Queue, pool: LabelPool) -> list[int]:
    counts = [0] * len(PRIORITIES)
    leased = (row for row in queue.rows_from(queue.committed, _END) if row.kind == LEASED)
    for row in islice(leased, _ROWS_MAX):
        for low, high, facts in pool.sources.within(row.first, row.last):
            counts[pool.naming.lane_of(facts[0])] += high - low + 1
    return counts


_END: Final = (1 << 63) - 1


_CRITICAL: Final = 0
_JUMPS_MAX: Final = 4
_GROUPS_MAX: Final = 10_000


class Precedence:
    """Which partitions of a group come first; it remembers how often somebody came out of turn."""

    def __init__(self, coordinator: QueueCoordinator) -> None:
        self._coordinator = coordinator
        self._jumps: dict[tuple[str, str], int] = {}

    def ordered(self, topic: str, group: str, partitions: Sequence[int]) -> Sequence[int]:
        """Partitions that came by turn, the urgent ones first."""
        if len(partitions) < 2:
            return partitions
        urgent = [partition for partition in partitions if self._is_urgent(topic, group, partition)]
        if not urgent or urgent[0] == partitions[0]:
            self._jumps.pop((topic, group), None)
            return partitions
        jumps = self._jumps.get((topic, group), 0)
        if jumps >= _JUMPS_MAX:
            del self._jumps[topic, group]
            return partitions
        if len(self._jumps) >= _GROUPS_MAX:
            self._jumps.clear()
        self._jumps[topic, group] = jumps + 1
        return [*urgent, *(partition for partition in partitions if partition not in urgent)]

    def _is_urgent(self, topic: str, group: str, partition: int) -> bool:
        try:
            queue = self._coordinator.shard_at((topic, partition)).machines.get(group)
        except PenstockError:
            return False
        pool = None if queue is None else queue.supply.pool
        return pool is not None and pool.next_lane() == _CRITICAL


# A consumer that was told of a message and does not come for it within this time has lost its turn.
_TURN_SECONDS: Final = 0.05


class QueueServing:
    """The queues led here, as other nodes may ask for them."""

    def __init__(self, ports: Ports, coordinator: QueueCoordinator) -> None:
        self._ports = ports
        self._coordinator = coordinator
        self.spawn = coordinator.background.spawn
        self._attempts = Attempts()
        self._precedence = Precedence(coordinator)

    def serve(self, peers: Peers) -> None:
        peers.serve(TAKE, self._take)
        peers.serve(ABANDON, lambda _node_id, request, _body: self._abandon(request))
        peers.serve(AWAIT_READY, self._await_ready)
        peers.serve(SETTLE, lambda _node_id, request, _body: self._settle(request))
        peers.serve(ORDER, lambda _node_id, request, _body: self._order(request))
        peers.serve(DESCRIBE, lambda _node_id, request, _body: self.look(request))
        peers.serve(PEEK, lambda _node_id, request, _body: self._peek(request))

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def take(
        self, request: TakeMessages
    ) -> tuple[list[PartitionLease], list[int], list[tuple[int, PenstockError]]]:
        """Leases, partitions where the group has yet to begin, and those that could not serve."""
        leases: list[PartitionLease] = []
        missing: list[int] = []
        problems: list[tuple[int, PenstockError]] = []
        messages, size = request.max_messages, request.max_bytes
        is_loading = {each: self._coordinator.is_loading((request.topic, each)) for each in request.partitions}
        partitions = self._precedence.ordered(request.topic, request.group, request.partitions)
        for partition in sorted(partitions, key=is_loading.__getitem__):
            if leases and is_loading[partition]:
                break  # with something to return, do not wait for a log to be read
            try:
                found = await deliver(
                    await self._coordinator.await_shard_at((request.topic, partition)),
                    request.group,
                    consumer=request.consumer,
                    max_messages=messages,
                    max_bytes=size,
                    visibility_timeout_ms=request.visibility_timeout_ms,
                )
            except asyncio.CancelledError:
                self._take_back(request.group, leases)
                raise
            except GroupNotFound:
                missing.append(partition)
                continue
            except InvalidRequest:
                if not leases:
                    raise
                break
            except PenstockError as error:
                problems.append((partition, error))
                continue
            leases += found
            messages -= sum(delivery.size for lease in found for delivery in lease.deliveries)
            size -= sum(len(lease.batches) for lease in found)
            if messages <= 0 or size <= 0:
                break
        if request.attempt and leases:
            name = (request.topic, request.group, request.attempt)
            self._attempts.note(name, leases, self._ports.clock.monotonic())
        return leases, missing, problems

    def _abandon(self, request: AbandonAttempt) -> Nothing:
        """Give back what an attempt got here, because it is made again."""
        name = (request.topic, request.group, request.attempt)
        self._take_back(request.group, self._attempts.take(name, self._ports.clock.monotonic()))
        return Nothing()

    def _take_back(self, group: str, leases: Sequence[PartitionLease]) -> None:
        for lease in leases:
            try:
                take_back(self._coordinator.shard_at((lease.topic, lease.partition)), group, lease)
            except PenstockError:
                continue  # led elsewhere by now: its time runs out there

    async def _take(self, _node_id: int, request: TakeMessages, _body: memoryview) -> Reply:
        leases, missing, problems = await self.take(request)
        told = tuple(
            TakenLease(lease.partition, lease.nonce, lease.until_ms, lease.deliveries, len(lease.batches))
            for lease in leases
        )
        taken = TakenLeases(told, tuple(missing), _told(problems))
        return Reply(taken, [lease.batches for lease in leases])

    def enter_rooms(self, waiter: Waiter, topic: str, group: str, partitions: Sequence[int]) -> list[QueueShard]:
        """Have a consumer wait at those of the partitions that are led here; the others are left out."""
        shards: list[QueueShard] = []
        for partition in partitions:
            try:
                shard = self._coordinator.shard_at((topic, partition))
            except PenstockError:
                continue
            waiter.enter(shard.room(group))
            shards.append(shard)
        return shards

    async def _await_ready(self, _node_id: int, request: AwaitReady, _body: memoryview) -> Nothing:
        waiter = Waiter()
        shards = self.enter_rooms(waiter, request.topic, request.group, request.partitions)
        try:
            if any(_is_ready(shard, request) for shard in shards):
                return Nothing()
            async with asyncio.timeout(request.wait_ms / 1000):
                await waiter.sleep()
        except TimeoutError:
            return Nothing()
        finally:
            waiter.leave_all(is_passing_on=False)
            asyncio.get_running_loop().call_later(_TURN_SECONDS, _pass_on, shards, request.group)
        return Nothing()

    # -- settling -----------------------------------------------------------------------------------------------------

    async def _settle(self, request: SettleReceipts) -> SettledParts:
        shard = await self._coordinator.await_shard_at((request.topic, request.partition))
        find_queue(shard, request.group)
        return SettledParts((await shard.request(request.group, _settling(request))).receipts)

    # -- orders -------------------------------------------------------------------------------------------------------

    async def _order(self, request: OrderGroup) -> Nothing:
        """Have one partition's part of a group do something."""
        shard = await self._coordinator.await_shard_at((request.topic, request.partition))
        action = request.action
        if isinstance(action, BeginGroup):
            await self._begin(shard, request.group, action)
            return Nothing()
        find_queue(shard, request.group)
        what: Request[None]
        match action:
            case PauseGroup():
                what = PauseQueue(action.is_paused, action.reason)
            case SeekGroup():
                what = SeekQueue(await self._locate(shard, start_of(action)))
            case PurgeGroup():
                what = PurgeBefore((await shard.source().reach()).end)
            case ForgetGroup():
                what = ForgetQueue()
        await shard.request(request.group, what)
        return Nothing()

    async def _begin(self, shard: QueueShard, group: str, action: BeginGroup) -> None:
        if group not in shard.machines:
            start = await self._locate(shard, start_of(action))
            secret = self._ports.random.getrandbits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big")
            await shard.request(group, BeginQueue(start, secret))
        if action.settings:
            await shard.request(group, ConfigureQueue(action.settings))

    async def _locate(self, shard: QueueShard, start: Start) -> int:
        reach = await shard.source().reach()
        if start == "earliest":
            return reach.start
        if start == "latest":
            return reach.end
        if isinstance(start, int):
            return min(max(start, reach.start), reach.end)
        return await self._ports.partitions.locate(shard.topic, shard.partition, start)

    # -- looking ------------------------------------------------------------------------------------------------------

    async def look(self, request: DescribeGroups) -> GroupReports:
        """Reports of groups, and the partitions that could not serve."""
        reports: list[GroupReport] = []
        problems: list[tuple[int, PenstockError]] = []
        for partition in request.partitions:
            try:
                shard = await self._coordinator.await_shard_at((request.topic, partition))
                reach = await shard.source().reach()
                wanted = [queue for queue in shard.machines.values() if request.group in {None, queue.id}]
                reports += [await _report(shard, queue, reach.start, reach.end) for queue in wanted]
            except PenstockError as error:
                problems.append((partition, error))
        return GroupReports(tuple(reports), _told(problems))

    async def _peek(self, request: PeekGroup) -> Reply:
        """The first messages that a group is not done with, and the batches that hold them."""
        shard = await self._coordinator.await_shard_at((request.topic, request.partition))
        queue = find_queue(shard, request.group)
        spans, batches = await peek(queue, shard.source(), request.max_messages, request.max_bytes)
        return Reply(PeekedSpans(tuple(spans)), (batches,))


def _is_ready(shard: QueueShard, request: AwaitReady) -> bool:
    """Whether there may be something to take, or something to begin."""
    return request.group not in shard.machines or shard.has_something(request.group, request.consumer)


def _pass_on(shards: Sequence[QueueShard], group: str) -> None:
    for shard in shards:
        if shard.is_ready:
            shard.pass_on(group)


def _settling(request: SettleReceipts) -> Request[JudgedReceipts]:
    match request.verb:
        case "ack":
            return AckDeliveries(request.receipts, request.producer)
        case "nack":
            return NackDeliveries(request.receipts, request.delay_ms, request.reason)
        case "reject":
            return RejectDeliveries(request.receipts, request.reason)
        case "release":
            return ReleaseDeliveries(request.receipts)
        case "extend":
            return ExtendLeases(request.receipts, request.visibility_timeout_ms)
    raise InvalidRequest(f"There is no way to {request.verb!r} a delivery.")


def start_of(action: BeginGroup | SeekGroup) -> Start:
    """Where to begin, as nodes tell each other."""
    if action.at is not None:
        return action.at
    if action.since_ms is not None:
        return SinceTime(action.since_ms)
    return "latest" if action.is_latest else "earliest"


def told_start(start: Start) -> dict[str, Any]:
    """The same in the other direction."""
    if isinstance(start, SinceTime):
        return {"since_ms": start.timestamp_ms}
    if isinstance(start, int):
        return {"at": start}
    return {"is_latest": start == "latest"}


def _told(problems: Sequence[tuple[int, PenstockError]]) -> tuple[PartitionProblem, ...]:
    return tuple(PartitionProblem(partition, Failure.of(error)) for partition, error in problems)


async def _report(shard: QueueShard, queue: Queue, start: int, end: int) -> GroupReport:
    stats = queue.stats(end)
    oldest = None if stats.oldest is None else max(stats.oldest, start)
    written_ms = None
    if oldest is not None and oldest < end:
        written_ms = await shard.source().written_ms(oldest)
    return GroupReport(
        queue.id,
        dict(queue.own_settings),
        queue.is_paused,
        queue.pause_reason,
        PartitionStats(
            partition=shard.partition,
            committed=max(stats.committed, start),
            end=end,
            ready=stats.ready if stats.committed >= start else max(0, stats.ready - (start - stats.committed)),
            in_flight=stats.in_flight,
            waiting=stats.waiting,
            dying=stats.dying,
            acked_ahead=stats.acked_ahead,
            oldest_ms=written_ms,
            lanes=await lanes_of(queue, shard.source(), shard.now_ms()),
            unseen=unseen_of(queue, end),
        ),
    )
