"""Receiving from all partitions of a topic: in turn, and if need be waiting for the first message.

Partitions have their turn one after the other, so that none is served only when the others are empty. A consumer that
waits stands in line at the partitions led here, and asks other nodes to say when there is something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from penstock.consensus.records import NO_LEADER
from penstock.errors import LeaderNotAvailable, PenstockError
from penstock.features.queues.core.receipts import Receipt
from penstock.features.queues.leading.coordinator import ensure_companion
from penstock.features.queues.leading.serving import QueueServing
from penstock.features.queues.leading.shard import Waiter
from penstock.features.queues.leases import Attempts, PartitionLease
from penstock.features.queues.wire import (
    ABANDON,
    AWAIT_READY,
    TAKE,
    AbandonAttempt,
    AwaitReady,
    SettleReceipts,
    TakeMessages,
    TakenLeases,
)
from penstock.machines.leaders import UNSURE
from penstock.machines.ports import Ports
from penstock.model import queue_state_topic
from penstock.network.port import Received

log = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 5.0  # with partitions that have no leader now
_PAUSE_SECONDS: Final = 0.05
_NETWORK_SECONDS: Final = 2.0  # beyond the time that a call may take where it is served
# Leaders change and partitions are added, so no consumer waits for longer than this without looking anew.
_LOOK_AGAIN_SECONDS: Final = 5.0
_TURNS_MAX: Final = 10_000
# A call that finds messages waits for nothing, so a consumer that keeps calling would hold up all others.
_CALLS_A_TURN: Final = 16
# A consumer that is told of messages and finds none, again and again, asks less often.
_IN_VAIN_SECONDS: Final = 0.002
_IN_VAIN_SECONDS_MAX: Final = 0.1

# Have a group begin in these partitions.
BeginIn = Callable[[str, str, Sequence[int]], Awaitable[None]]
# Have messages delivered again that no consumer saw.
Release = Callable[[SettleReceipts], Coroutine[Any, Any, None]]

Problems = list[tuple[int, PenstockError]]


class Receiving:
    """Every call that receives on this node."""

    def __init__(self, ports: Ports, serving: QueueServing, begin_in: BeginIn, release: Release) -> None:
        self._ports = ports
        self._serving = serving
        self._begin_in = begin_in
        self._release = release
        self._turns: dict[tuple[str, str], int] = {}  # which partition is next
        self._waiters: dict[Waiter, str] = {}  # all that wait here, and for what topic
        self._attempts = Attempts()  # that were made here
        self._is_stopping = False
        self._calls = 0

    def stop(self) -> None:
        """Answer all consumers that wait, with nothing."""
        self._is_stopping = True
        for waiter in self._waiters:
            waiter.wake()

    def on_opened(self, topic: str) -> None:
        """Queues of a topic are led here now: consumers that wait have to look again."""
        for waiter, waits_for in self._waiters.items():
            if waits_for == topic:
                waiter.wake()

    async def begin_attempt(self, topic: str, group: str, attempt: str, *, is_repeat: bool) -> None:
        """If an attempt was made before, have all leaders give back what it got."""
        is_known = self._attempts.note((topic, group, attempt), [], self._ports.clock.monotonic())
        if is_known or is_repeat:
            await self._abandon(AbandonAttempt(topic, group, attempt))

    async def receive(self, request: TakeMessages, wait_ms: int) -> list[PartitionLease]:
        """Leases from any partitions; ``request`` tells all but which ones."""
        self._calls += 1
        if self._calls % _CALLS_A_TURN == 0:
            await asyncio.sleep(0)
        clock = self._ports.clock
        began = clock.monotonic()
        deadline = began + wait_ms / 1000
        waiter: Waiter | None = None
        in_vain = 0  # how often there should have been something and was not, one time after the other
        try:
            while True:
                if queue_state_topic(request.topic) not in self._ports.metadata.topics:
                    await ensure_companion(self._ports, request.topic)
                order = self._order(request)
                leases, problems = await self._take_round(request, order)
                if leases:
                    self._note_turn(request, leases[0].partition, len(order))
                    return leases
                if self._is_stopping:
                    return []
                now = clock.monotonic()
                if len(problems) == len(order) and now >= max(deadline, began + _PATIENCE_SECONDS):
                    raise problems[0][1]
                if len(problems) == len(order):
                    await asyncio.sleep(_PAUSE_SECONDS)
                elif now >= deadline:
                    return []
                elif waiter is None:  # get in line first and look once more, so that nothing comes in between
                    waiter = Waiter()
                    self._waiters[waiter] = request.topic
                    self._serving.enter_rooms(waiter, request.topic, request.group, order)
                else:
                    seconds = min(deadline - now, _LOOK_AGAIN_SECONDS, *([_PAUSE_SECONDS * 10] if problems else []))
                    await asyncio.sleep(min(in_vain * _IN_VAIN_SECONDS, _IN_VAIN_SECONDS_MAX, seconds))
                    in_vain = in_vain + 1 if await self._wait(waiter, request, order, seconds) else 0
        finally:
            if waiter is not None:
                del self._waiters[waiter]
                waiter.leave_all()

    # -- one round ----------------------------------------------------------------------------------------------------

    def _order(self, request: TakeMessages) -> list[int]:
        count = len(self._ports.metadata.topic(request.topic).partitions)
        first = self._turns.get((request.topic, request.group), 0) % count
        return [*range(first, count), *range(first)]

    def _note_turn(self, request: TakeMessages, served: int, count: int) -> None:
        if count > 1:
            if len(self._turns) >= _TURNS_MAX:
                self._turns.clear()
            self._turns[request.topic, request.group] = (served + 1) % count

    async def _take_round(self, request: TakeMessages, order: list[int]) -> tuple[list[PartitionLease], Problems]:
        """Ask each node for its partitions, until there is enough."""
        leases: list[PartitionLease] = []
        problems: Problems = []
        messages, size = request.max_messages, request.max_bytes
        for node_id, partitions in self._by_leader(request.topic, order).items():
            wanted = TakeMessages(
                request.topic,
                request.group,
                request.consumer,
                tuple(partitions),
                messages,
                size,
                request.visibility_timeout_ms,
                request.attempt,
            )
            try:
                found, missing, failed = await self._take(node_id, wanted)
                if missing:
                    await self._begin_in(request.topic, request.group, missing)
                if missing and not found:
                    found, _, failed = await self._take(node_id, wanted)
            except BaseException:
                self._give_back(request.group, leases)
                raise
            leases += found
            problems += failed
            messages -= sum(delivery.size for lease in found for delivery in lease.deliveries)
            size -= sum(len(lease.batches) for lease in found)
            if messages <= 0 or size <= 0:
                break
        return leases, problems

    def _by_leader(self, topic: str, partitions: Sequence[int]) -> dict[int, list[int]]:
        return self._ports.leaders.by_leader(queue_state_topic(topic), partitions)

    # -- asking leaders -----------------------------------------------------------------------------------------------

    async def _take(self, node_id: int, request: TakeMessages) -> tuple[list[PartitionLease], Sequence[int], Problems]:
        """Lease messages at one node; where the group has to begin, and which partitions could not serve."""
        if node_id == self._ports.node_id:
            return await self._serving.take(request)
        if node_id == NO_LEADER:
            return [], (), [(partition, no_leader(request.topic)) for partition in request.partitions]
        try:
            received = await self._call_take(node_id, request)
        except UNSURE as error:
            return [], (), [(partition, error) for partition in request.partitions]
        taken: TakenLeases = received.reply
        problems = [(each.partition, each.failure.revived()) for each in taken.problems]
        return _leases_of(request.topic, received), taken.missing, problems

    async def _call_take(self, node_id: int, request: TakeMessages) -> Received:
        """Ask another node; if the call is cancelled meanwhile, the messages that come are given back."""
        call = asyncio.ensure_future(self._ports.peers.call(node_id, TAKE, request))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(lambda done: self._on_abandoned(request, done))
            raise

    def _on_abandoned(self, request: TakeMessages, call: asyncio.Future[Received]) -> None:
        if not call.cancelled() and call.exception() is None:
            self._give_back(request.group, _leases_of(request.topic, call.result()))

    def _give_back(self, group: str, leases: Sequence[PartitionLease]) -> None:
        """Have messages that no consumer saw delivered again soon."""
        for lease in leases:
            receipts = tuple(
                Receipt(lease.topic, lease.partition, first, last, count, lease.nonce)
                for first, last, count in lease.deliveries
            )
            self._serving.spawn(self._release(SettleReceipts(lease.topic, lease.partition, group, "release", receipts)))

    async def _abandon(self, request: AbandonAttempt) -> None:
        """Have each leader of a topic's queues give back what an attempt got; one that is not reached keeps it."""
        partitions = list(range(len(self._ports.metadata.topic(request.topic).partitions)))
        nodes = [node_id for node_id in self._by_leader(request.topic, partitions) if node_id != NO_LEADER]
        calls = [self._ports.peers.call(node_id, ABANDON, request) for node_id in nodes]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, PenstockError):
                log.debug("What attempt %s got may wait until its lease ends: %s", request.attempt, answer.message)
            elif isinstance(answer, BaseException):
                raise answer

    async def _await_ready(self, node_id: int, request: AwaitReady) -> None:
        """Return once another node may have something, or after a while."""
        timeout_s = request.wait_ms / 1000 + _NETWORK_SECONDS
        try:
            await self._ports.peers.call(node_id, AWAIT_READY, request, timeout_s=timeout_s)
        except PenstockError:
            await asyncio.sleep(_PAUSE_SECONDS)

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _wait(self, waiter: Waiter, request: TakeMessages, order: list[int], seconds: float) -> bool:
        """Return once there may be something somewhere, or after a while; whether there may be."""
        self._serving.enter_rooms(waiter, request.topic, request.group, order)
        waiter.pass_on()
        here = self._ports.node_id
        calls = [
            asyncio.ensure_future(
                self._await_ready(
                    node_id,
                    AwaitReady(request.topic, request.group, request.consumer, tuple(partitions), int(seconds * 1000)),
                )
            )
            for node_id, partitions in self._by_leader(request.topic, order).items()
            if node_id not in {here, NO_LEADER}
        ]
        if not calls:
            try:
                async with asyncio.timeout(seconds):
                    await waiter.sleep()
            except TimeoutError:
                return False
            return True
        calls.append(asyncio.ensure_future(waiter.sleep()))
        try:
            done, _ = await asyncio.wait(calls, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        return bool(done)


def no_leader(topic: str) -> LeaderNotAvailable:
    return LeaderNotAvailable(f"Some partitions of {topic} have no leader for their queues now. Try again in a moment.")


def _leases_of(topic: str, received: Received) -> list[PartitionLease]:
    """The leases of another node, with the batches that came behind them."""
    taken: TakenLeases = received.reply
    leases: list[PartitionLease] = []
    at = 0
    for each in taken.leases:
        batches = bytes(received.body[at : at + each.size])
        leases.append(PartitionLease(topic, each.partition, each.nonce, each.until_ms, each.deliveries, batches))
        at += each.size
    return leases
