"""The way into a joint transaction for a writer that acks, on whatever node its call has come to.

The transaction is told of the partitions before anything goes there, by whoever coordinates it. From then on they hear
of its end: what arrives there later is fenced by the marker. So it does not matter how long the way is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

import msgspec

from penstock.consensus.metadata import Topic
from penstock.errors import CoordinatorLoading, LeaderNotAvailable, NotCoordinator, PeerUnavailable, TransactionNotFound
from penstock.features.transactions.joint.messages import check_writer
from penstock.machines.leaders import Leaders
from penstock.machines.messages import ProducerIdentity
from penstock.model import TRANSACTIONS_TOPIC
from penstock.network.port import Method

_TIMEOUT_SECONDS: Final = 3.0


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

    def __init__(self, enter: Enter, leaders: Leaders) -> None:
        self._enter = enter
        self._leaders = leaders

    def serve(self) -> None:
        self._leaders.peers.serve(ENTER_ACKS, self._on_enter)

    async def enter(
        self, transaction_id: str, writer: str, topic: Topic, partitions: frozenset[int]
    ) -> ProducerIdentity:
        """As whom a writer acks in a transaction; the transaction knows of the partitions then."""
        check_writer(writer)
        where = self._leaders.where(TRANSACTIONS_TOPIC, transaction_id)
        if where is None:
            if not self._leaders.is_alone:
                raise CoordinatorLoading("This node does not know yet who coordinates transactions.")
            raise TransactionNotFound(f"There is no transaction {transaction_id!r}, or it ended too long ago.")
        request = EnterAcks(transaction_id, writer, topic.topic_id, tuple(sorted(partitions)))
        try:
            received = await self._leaders.ask(where, ENTER_ACKS, request, timeout_s=_TIMEOUT_SECONDS)
        except (LeaderNotAvailable, PeerUnavailable) as error:
            raise NotCoordinator(error.message) from error
        entered: EnteredAcks = received.reply
        return ProducerIdentity(entered.producer_id, entered.epoch)

    async def _enter_here(self, request: EnterAcks) -> ProducerIdentity:
        # Only what this node knows of: what it does not it would take for deleted when the end comes.
        topic = self._leaders.metadata.topic_by_id(request.topic_id)
        if topic is None or max(request.partitions) >= len(topic.partitions):
            raise CoordinatorLoading("The coordinator of the transaction does not know these partitions yet.")
        return await self._enter(request.transaction, request.writer, topic, frozenset(request.partitions))

    async def _on_enter(self, _node_id: int, request: EnterAcks, _body: memoryview) -> EnteredAcks:
        return EnteredAcks(*await self._enter_here(request))
