"""What can be told of the lanes of a queue: from the pool and the rows, and when the oldest message was written.

Precedence between partitions: those where a critical message is next go before the others, but not for ever.

Lanes hold within a partition. A receive that goes through several of them asks those first whose next message is
critical; the others come in their turn. So that a partition which only ever has critical messages cannot keep the
others waiting, a few receives in a row may jump the queue, and then one goes by turn.

What this node does for the queues that it leads, asked by itself or by other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from penstock.consensus.queue_config import Lanes
from penstock.errors import GroupNotFound, InvalidRequest, PenstockError
from penstock.features.queues.core.deliveries import LEASED
from penstock.features.queues.core.messages import (
    AckDeliveries,
    BeginQueue,
    ConfigureQueue,
    ExtendLeases,
    ForgetQueue,
    JudgedReceipts,
    NackDeliveries,
    PauseQueue,
    PurgeBefore,
    RejectDeliveries,
    ReleaseDeliveries,
    SeekQueue,
)
from penstock.features.queues.core.queue import Queue
from penstock.features.queues.core.receipts import SECRET_BYTES
from penstock.features.queues.core.shares import LabelPool
from penstock.features.queues.leading.delivering import deliver, find_queue, peek, take_back
from penstock.features.queues.leading.shard import QueueCoordinator, QueueShard, Waiter
from penstock.features.queues.leading.sources import MessageSource
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
