"""What this node does for queues that it leads, whoever asks: itself, or another node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.coordination.messages import Request
from penstock.broker.queues.attempts import Attempts
from penstock.broker.queues.core.messages import (
    Ack,
    Begin,
    Configure,
    Extend,
    Forget,
    Judged,
    Nack,
    Pause,
    Purge,
    Reject,
    Release,
    Seek,
)
from penstock.broker.queues.core.queue import Queue
from penstock.broker.queues.core.receipts import SECRET_BYTES
from penstock.broker.queues.leading.coordinator import QueueCoordinator
from penstock.broker.queues.leading.delivering import deliver, find_queue, take_back
from penstock.broker.queues.leading.lane_reports import lanes_of, unseen_of
from penstock.broker.queues.leading.peeking import peek
from penstock.broker.queues.leading.polling import Waiter
from penstock.broker.queues.leading.precedence import Precedence
from penstock.broker.queues.leading.shard import QueueShard
from penstock.broker.queues.leases import Lease
from penstock.broker.queues.reports import GroupReport, PartitionStats
from penstock.broker.queues.wire import (
    ABANDON,
    AWAIT_READY,
    LOOK,
    ORDER,
    PEEK,
    SETTLE,
    TAKE,
    Abandon,
    AwaitReady,
    BeginGroup,
    ForgetGroup,
    Look,
    Looked,
    Order,
    PauseGroup,
    Peek,
    PeekedSpans,
    Problem,
    PurgeGroup,
    SeekGroup,
    Settle,
    SettledParts,
    Take,
    Taken,
    TakenLease,
)
from penstock.broker.starts import Since, Start
from penstock.errors import GroupNotFound, InvalidRequest, PenstockError
from penstock.peers.frames import Failure
from penstock.peers.port import Nothing, Peers, Reply

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# Whoever was told that there is something and does not come for it within this time has lost its turn.
_TURN_SECONDS: Final = 0.05


class QueueServing:
    """The queues led here, as other nodes may ask for them."""

    def __init__(self, broker: Broker, coordinator: QueueCoordinator) -> None:
        self._broker = broker
        self._coordinator = coordinator
        self._attempts = Attempts()
        self._precedence = Precedence(coordinator)

    def serve(self, peers: Peers) -> None:
        peers.serve(TAKE, self._take)
        peers.serve(ABANDON, self._abandon)
        peers.serve(AWAIT_READY, self._await_ready)
        peers.serve(SETTLE, self._settle)
        peers.serve(ORDER, self._order)
        peers.serve(LOOK, self._look)
        peers.serve(PEEK, self._peek)

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def take(self, request: Take) -> tuple[list[Lease], list[int], list[tuple[int, PenstockError]]]:
        """Leases, partitions where the group has yet to begin, and those that could not serve."""
        leases: list[Lease] = []
        missing: list[int] = []
        problems: list[tuple[int, PenstockError]] = []
        messages, size = request.max_messages, request.max_bytes
        is_loading = {each: self._coordinator.is_loading(request.topic, each) for each in request.partitions}
        partitions = self._precedence.ordered(request.topic, request.group, request.partitions)
        for partition in sorted(partitions, key=is_loading.__getitem__):
            if leases and is_loading[partition]:
                break  # nobody waits for a log to be read who has something already
            try:
                found = await deliver(
                    await self._coordinator.await_shard(request.topic, partition),
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
            self._attempts.note(name, leases, self._broker.clock.monotonic())
        return leases, missing, problems

    def abandon(self, request: Abandon) -> None:
        """Give back what an attempt got here, because it is made again."""
        name = (request.topic, request.group, request.attempt)
        self._take_back(request.group, self._attempts.take(name, self._broker.clock.monotonic()))

    async def _abandon(self, _node_id: int, request: Abandon, _body: memoryview) -> Nothing:
        self.abandon(request)
        return Nothing()

    def _take_back(self, group: str, leases: Sequence[Lease]) -> None:
        for lease in leases:
            try:
                take_back(self._coordinator.find(lease.topic, lease.partition), group, lease)
            except PenstockError:
                continue  # led elsewhere by now: its time runs out there

    async def _take(self, _node_id: int, request: Take, _body: memoryview) -> Reply:
        leases, missing, problems = await self.take(request)
        told = tuple(
            TakenLease(lease.partition, lease.nonce, lease.until_ms, lease.deliveries, len(lease.batches))
            for lease in leases
        )
        taken = Taken(told, tuple(missing), _told(problems))
        return Reply(taken, [lease.batches for lease in leases])

    def enter_rooms(self, waiter: Waiter, topic: str, group: str, partitions: Sequence[int]) -> list[QueueShard]:
        """Have somebody wait at those of the partitions that are led here; the others are left out."""
        shards: list[QueueShard] = []
        for partition in partitions:
            try:
                shard = self._coordinator.find(topic, partition)
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

    async def settle(self, request: Settle) -> Judged:
        shard = await self._coordinator.await_shard(request.topic, request.partition)
        find_queue(shard, request.group)
        return await shard.request(request.group, _settling(request))

    async def _settle(self, _node_id: int, request: Settle, _body: memoryview) -> SettledParts:
        return SettledParts((await self.settle(request)).receipts)

    # -- orders -------------------------------------------------------------------------------------------------------

    async def order(self, request: Order) -> None:
        """Have one partition's part of a group do something."""
        shard = await self._coordinator.await_shard(request.topic, request.partition)
        action = request.action
        if isinstance(action, BeginGroup):
            await self._begin(shard, request.group, action)
            return
        find_queue(shard, request.group)
        what: Request[None]
        match action:
            case PauseGroup():
                what = Pause(action.is_paused, action.reason)
            case SeekGroup():
                what = Seek(await self._locate(shard, start_of(action)))
            case PurgeGroup():
                what = Purge((await shard.source().reach()).end)
            case ForgetGroup():
                what = Forget()
        await shard.request(request.group, what)

    async def _begin(self, shard: QueueShard, group: str, action: BeginGroup) -> None:
        if group not in shard.machines:
            start = await self._locate(shard, start_of(action))
            secret = self._broker.surroundings.random.getrandbits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big")
            await shard.request(group, Begin(start, secret))
        if action.settings:
            await shard.request(group, Configure(action.settings))

    async def _locate(self, shard: QueueShard, start: Start) -> int:
        reach = await shard.source().reach()
        if start == "earliest":
            return reach.start
        if start == "latest":
            return reach.end
        if isinstance(start, int):
            return min(max(start, reach.start), reach.end)
        return await self._broker.remote.locate(shard.topic, shard.partition, start)

    async def _order(self, _node_id: int, request: Order, _body: memoryview) -> Nothing:
        await self.order(request)
        return Nothing()

    # -- looking ------------------------------------------------------------------------------------------------------

    async def look(self, request: Look) -> tuple[list[GroupReport], list[tuple[int, PenstockError]]]:
        """What there is to tell of groups; partitions that could not serve."""
        reports: list[GroupReport] = []
        problems: list[tuple[int, PenstockError]] = []
        for partition in request.partitions:
            try:
                shard = await self._coordinator.await_shard(request.topic, partition)
                reach = await shard.source().reach()
                wanted = [queue for queue in shard.machines.values() if request.group in {None, queue.id}]
                reports += [await _report(shard, queue, reach.start, reach.end) for queue in wanted]
            except PenstockError as error:
                problems.append((partition, error))
        return reports, problems

    async def _look(self, _node_id: int, request: Look, _body: memoryview) -> Looked:
        reports, problems = await self.look(request)
        return Looked(tuple(reports), _told(problems))

    async def peek(self, request: Peek) -> tuple[PeekedSpans, bytes]:
        """The first messages that a group is not done with, and the batches that hold them."""
        shard = await self._coordinator.await_shard(request.topic, request.partition)
        queue = find_queue(shard, request.group)
        spans, batches = await peek(queue, shard.source(), request.max_messages, request.max_bytes)
        return PeekedSpans(tuple(spans)), batches

    async def _peek(self, _node_id: int, request: Peek, _body: memoryview) -> Reply:
        spans, batches = await self.peek(request)
        return Reply(spans, (batches,))


def _is_ready(shard: QueueShard, request: AwaitReady) -> bool:
    """Whether there may be something to take, or something to begin."""
    return request.group not in shard.machines or shard.has_something(request.group, request.consumer)


def _pass_on(shards: Sequence[QueueShard], group: str) -> None:
    for shard in shards:
        if shard.is_ready:
            shard.pass_on(group)


def _settling(request: Settle) -> Request[Judged]:
    match request.verb:
        case "ack":
            return Ack(request.receipts, request.producer)
        case "nack":
            return Nack(request.receipts, request.delay_ms, request.reason)
        case "reject":
            return Reject(request.receipts, request.reason)
        case "release":
            return Release(request.receipts)
        case "extend":
            return Extend(request.receipts, request.visibility_timeout_ms)
    raise InvalidRequest(f"There is no way to {request.verb!r} a delivery.")


def start_of(action: BeginGroup | SeekGroup) -> Start:
    """Where to begin, as nodes tell each other."""
    if action.at is not None:
        return action.at
    if action.since_ms is not None:
        return Since(action.since_ms)
    return "latest" if action.is_latest else "earliest"


def told_start(start: Start) -> dict[str, Any]:
    """The same in the other direction."""
    if isinstance(start, Since):
        return {"since_ms": start.timestamp_ms}
    if isinstance(start, int):
        return {"at": start}
    return {"is_latest": start == "latest"}


def _told(problems: Sequence[tuple[int, PenstockError]]) -> tuple[Problem, ...]:
    return tuple(Problem(partition, Failure.of(error)) for partition, error in problems)


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
