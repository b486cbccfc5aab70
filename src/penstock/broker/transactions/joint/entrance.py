"""The way into a joint transaction for a writer that acks, on whatever node its call has come to.

The transaction is told of the partitions before anything goes there, by whoever coordinates it. From then on they hear
of its end: what arrives there later is fenced by the marker. So it does not matter how long the way is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

import msgspec

from penstock.broker.coordination.coordinator import shard_of
from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.coordination.neighbours import Neighbours
from penstock.broker.transactions.joint.writers import check_writer
from penstock.clock import Clock
from penstock.cluster.metadata import Topic
from penstock.cluster.records import NO_LEADER
from penstock.errors import CoordinatorLoading, NotCoordinator, PeerUnavailable, TransactionNotFound
from penstock.model import TRANSACTIONS_TOPIC
from penstock.peers.port import Method

_PATIENCE_SECONDS: Final = 3.0  # with a coordinator that is about to be replaced, or has yet to read its log
_PAUSE_SECONDS: Final = 0.05


class EnterAcks(msgspec.Struct, frozen=True):
    """A writer is about to ack messages: the partitions that will hold that."""

    transaction: str
    writer: str
    topic_id: UUID
    partitions: tuple[int, ...]


class EnteredAcks(msgspec.Struct, frozen=True):
    """Who the writer is in the logs."""

    producer_id: int
    epoch: int


ENTER_ACKS: Final = Method("joint.enter_acks", EnterAcks, EnteredAcks)

Enter = Callable[[str, str, Topic, frozenset[int]], Awaitable[ProducerIdentity]]


class Entrance:
    """Lets writers in, here or by the node that coordinates. ``enter`` is for transactions coordinated here."""

    def __init__(self, enter: Enter, neighbours: Neighbours, clock: Clock) -> None:
        self._enter = enter
        self._neighbours = neighbours
        self._clock = clock

    def serve(self) -> None:
        self._neighbours.peers.serve(ENTER_ACKS, self._on_enter)

    async def enter(
        self, transaction_id: str, writer: str, topic: Topic, partitions: frozenset[int]
    ) -> ProducerIdentity:
        """As whom a writer acks in a transaction; the transaction knows of the partitions then."""
        check_writer(writer)
        request = EnterAcks(transaction_id, writer, topic.topic_id, tuple(sorted(partitions)))
        until = self._clock.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return await self._ask(request)
            except (NotCoordinator, CoordinatorLoading, PeerUnavailable) as error:
                if self._clock.monotonic() >= until:
                    raise NotCoordinator(error.message) from error
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask(self, request: EnterAcks) -> ProducerIdentity:
        neighbours = self._neighbours
        leader = self._leader(request.transaction)
        if leader == neighbours.node_id:
            return await self._enter_here(request)
        received = await neighbours.peers.call(leader, ENTER_ACKS, request, timeout_s=_PATIENCE_SECONDS)
        entered: EnteredAcks = received.reply
        return ProducerIdentity(entered.producer_id, entered.epoch)

    def _leader(self, transaction_id: str) -> int:
        topic = self._neighbours.metadata.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            if not self._neighbours.is_alone:
                raise CoordinatorLoading("This node does not know yet who coordinates transactions.")
            raise TransactionNotFound(f"There is no transaction {transaction_id!r}, or it ended too long ago.")
        leader = topic.partitions[shard_of(transaction_id, len(topic.partitions))].leader
        if leader == NO_LEADER:
            raise NotCoordinator(f"Nobody coordinates transaction {transaction_id!r} now.")
        return leader

    async def _enter_here(self, request: EnterAcks) -> ProducerIdentity:
        # Only what this node knows of: what it does not it would take for deleted when the end comes.
        topic = self._neighbours.metadata.topic_by_id(request.topic_id)
        if topic is None or max(request.partitions) >= len(topic.partitions):
            raise CoordinatorLoading("The coordinator of the transaction does not know these partitions yet.")
        return await self._enter(request.transaction, request.writer, topic, frozenset(request.partitions))

    async def _on_enter(self, _node_id: int, request: EnterAcks, _body: memoryview) -> EnteredAcks:
        return EnteredAcks(*await self._enter_here(request))
