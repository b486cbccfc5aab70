"""Which node leads the queues of which partitions, and asking it: directly where it is this one.

What is refused because leaders change is tried again for a short while, as metadata reaches nodes one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.broker.queues.core.messages import Part
from penstock.broker.queues.core.receipts import Receipt
from penstock.broker.queues.leading.serving import QueueServing
from penstock.broker.queues.leases import Lease
from penstock.broker.queues.reports import GroupReport
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
    Look,
    Looked,
    Order,
    Peek,
    PeekedSpans,
    Settle,
    SettledParts,
    Take,
    Taken,
)
from penstock.cluster.records import NO_LEADER
from penstock.errors import (
    CoordinatorLoading,
    LeaderNotAvailable,
    NotCoordinator,
    NotLeader,
    OffsetNotAvailable,
    PeerNotReached,
    PeerUnavailable,
    PenstockError,
)
from penstock.model import queue_state_topic
from penstock.peers.port import Received

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.05
_WAY_SECONDS: Final = 2.0  # beyond the time that a call may take where it is served
# Leaders change, and the next one is found soon. What may have been done is told apart by its receipt when it is asked
# again, so nothing is done twice.
REFUSED: Final = (
    NotCoordinator,
    CoordinatorLoading,
    NotLeader,
    LeaderNotAvailable,
    OffsetNotAvailable,
    PeerNotReached,
    PeerUnavailable,
)

Problems = list[tuple[int, PenstockError]]


class QueueRoutes:
    """The queues of every partition, wherever they are led."""

    def __init__(
        self, broker: Broker, serving: QueueServing, spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._broker = broker
        self._serving = serving
        self._spawn = spawn
        self._node_id = broker.config.node_id

    def leader_of(self, topic: str, partition: int) -> int:
        """The node that leads the queues of a partition; `NO_LEADER` if none does."""
        companion = self._broker.metadata.topics.get(queue_state_topic(topic))
        if companion is None or partition >= len(companion.partitions):
            return NO_LEADER
        return companion.partitions[partition].leader

    def by_node(self, topic: str, partitions: Iterable[int]) -> dict[int, list[int]]:
        """Partitions by the node that leads their queues, in the order in which they come."""
        found: dict[int, list[int]] = {}
        for partition in partitions:
            found.setdefault(self.leader_of(topic, partition), []).append(partition)
        return found

    async def at_leader(self, topic: str, partition: int, attempt: Callable[[int], Awaitable[T]]) -> T:
        """Have whoever leads the queues of a partition do something, as soon as somebody does."""
        deadline = self._broker.clock.monotonic() + _PATIENCE_SECONDS
        while True:
            self._broker.metadata.partition(topic, partition)  # raises if it is gone
            try:
                leader = self.leader_of(topic, partition)
                if leader == NO_LEADER:
                    raise LeaderNotAvailable(f"Nobody leads the queues of {topic}-{partition} now. Try again soon.")
                return await attempt(leader)
            except REFUSED:
                if self._broker.clock.monotonic() + _PAUSE_SECONDS > deadline:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    # -- each call ----------------------------------------------------------------------------------------------------

    async def take(self, node_id: int, request: Take) -> tuple[list[Lease], Sequence[int], Problems]:
        """Lease messages at one node; where the group has to begin, and what could not serve."""
        if node_id == self._node_id:
            return await self._serving.take(request)
        if node_id == NO_LEADER:
            gone = LeaderNotAvailable(f"Nobody leads some queues of {request.topic} now. Try again in a moment.")
            return [], (), [(partition, gone) for partition in request.partitions]
        try:
            received = await self._call_take(node_id, request)
        except REFUSED as error:
            return [], (), [(partition, error) for partition in request.partitions]
        taken: Taken = received.reply
        problems = [(each.partition, each.failure.revived()) for each in taken.problems]
        return _leases_of(request.topic, received), taken.missing, problems

    async def abandon(self, request: Abandon) -> None:
        """Have every leader of a topic's queues give back what an attempt got; one that does not hear it lets it be."""
        partitions = range(len(self._broker.metadata.topic(request.topic).partitions))
        calls: list[Awaitable[object]] = []
        for node_id in self.by_node(request.topic, partitions):
            if node_id == self._node_id:
                self._serving.abandon(request)
            elif node_id != NO_LEADER:
                calls.append(self._broker.peers.call(node_id, ABANDON, request))
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, PenstockError):
                log.debug("What attempt %s got may wait until its lease ends: %s", request.attempt, answer.message)
            elif isinstance(answer, BaseException):
                raise answer

    async def _call_take(self, node_id: int, request: Take) -> Received:
        """Ask another node; if whoever waits for it is cancelled, what comes is given back."""
        call = asyncio.ensure_future(self._broker.peers.call(node_id, TAKE, request))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(lambda done: self._on_abandoned(request, done))
            raise

    def _on_abandoned(self, request: Take, call: asyncio.Future[Received]) -> None:
        if not call.cancelled() and call.exception() is None:
            self.give_back(request.group, _leases_of(request.topic, call.result()))

    def give_back(self, group: str, leases: Sequence[Lease]) -> None:
        """Have messages that nobody saw delivered to somebody else, soon."""
        for lease in leases:
            receipts = tuple(
                Receipt(lease.topic, lease.partition, first, last, count, lease.nonce)
                for first, last, count in lease.deliveries
            )
            self._spawn(self._release(Settle(lease.topic, lease.partition, group, "release", receipts)))

    async def _release(self, request: Settle) -> None:
        try:
            await self.settle(request)
        except PenstockError as error:
            log.debug("What nobody received waits until its lease ends: %s", error.message)

    async def await_ready(self, node_id: int, request: AwaitReady) -> None:
        """Return once another node may have something, or after a while."""
        timeout_s = request.wait_ms / 1000 + _WAY_SECONDS
        try:
            await self._broker.peers.call(node_id, AWAIT_READY, request, timeout_s=timeout_s)
        except PenstockError:
            await asyncio.sleep(_PAUSE_SECONDS)

    async def settle(self, request: Settle) -> tuple[tuple[Part, ...], ...]:
        async def attempt(leader: int) -> tuple[tuple[Part, ...], ...]:
            if leader == self._node_id:
                return (await self._serving.settle(request)).receipts
            reply: SettledParts = (await self._broker.peers.call(leader, SETTLE, request)).reply
            return reply.receipts

        return await self.at_leader(request.topic, request.partition, attempt)

    async def order(self, request: Order) -> None:
        async def attempt(leader: int) -> None:
            if leader == self._node_id:
                await self._serving.order(request)
            else:
                await self._broker.peers.call(leader, ORDER, request)

        await self.at_leader(request.topic, request.partition, attempt)

    async def look(
        self, topic: str, group: str | None, partitions: Sequence[int]
    ) -> tuple[list[GroupReport], Problems]:
        """What there is to tell of groups, by partition, as far as they can be asked."""
        reports: list[GroupReport] = []
        problems: Problems = []
        for node_id, found in self.by_node(topic, partitions).items():
            request = Look(topic, group, tuple(found))
            if node_id == self._node_id:
                some, failed = await self._serving.look(request)
                reports += some
                problems += failed
                continue
            try:
                if node_id == NO_LEADER:
                    raise LeaderNotAvailable(f"Nobody leads some queues of {topic} now. Try again in a moment.")
                looked: Looked = (await self._broker.peers.call(node_id, LOOK, request)).reply
            except REFUSED as error:
                problems += [(partition, error) for partition in found]
            else:
                reports += looked.reports
                problems += [(each.partition, each.failure.revived()) for each in looked.problems]
        return reports, problems

    async def peek(self, request: Peek) -> tuple[PeekedSpans, bytes | memoryview]:
        async def attempt(leader: int) -> tuple[PeekedSpans, bytes | memoryview]:
            if leader == self._node_id:
                return await self._serving.peek(request)
            received = await self._broker.peers.call(leader, PEEK, request)
            return received.reply, received.body

        return await self.at_leader(request.topic, request.partition, attempt)


def _leases_of(topic: str, received: Received) -> list[Lease]:
    """What another node leased, with the batches that came behind it."""
    taken: Taken = received.reply
    leases: list[Lease] = []
    at = 0
    for each in taken.leases:
        batches = bytes(received.body[at : at + each.size])
        leases.append(Lease(topic, each.partition, each.nonce, each.until_ms, each.deliveries, batches))
        at += each.size
    return leases
