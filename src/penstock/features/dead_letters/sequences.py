"""How far a producer got in a partition, as its leader knows it: what a writer asks who cannot tell what it wrote.

The answer is about what is committed: whatever was written before the question is waited for, so that nothing counts
as done that could still be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

import msgspec

from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import NO_LEADER
from penstock.errors import LeaderNotAvailable, NotLeader, RequestTimedOut
from penstock.machines.messages import ProducerIdentity
from penstock.network.port import Method, Peers
from penstock.partitions.partition import Partition

UNKNOWN: Final = -1

_PATIENCE_SECONDS: Final = 10.0


class AskSequence(msgspec.Struct, frozen=True):
    topic_id: UUID
    partition: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int


class LastSequence(msgspec.Struct, frozen=True):
    """Of the producer's last message in that epoch; `UNKNOWN` if none is remembered."""

    sequence: int


LAST_SEQUENCE: Final = Method("producer.sequence", AskSequence, LastSequence)


class Sequences:
    """Asks leaders anywhere, and answers for the partitions that are led here."""

    def __init__(self, metadata: ClusterMetadata, peers: Peers, find: Callable[[UUID, int], Partition | None]) -> None:
        self._metadata = metadata
        self._peers = peers
        self._find = find

    def serve(self) -> None:
        self._peers.serve(LAST_SEQUENCE, self._answer)

    async def last(self, topic: str, index: int, producer: ProducerIdentity) -> int:
        """The sequence of the last message that a producer has in a partition, `UNKNOWN` if none is remembered."""
        found = self._metadata.topic(topic)
        assigned = self._metadata.partition(topic, index)
        if assigned.leader == NO_LEADER:
            raise LeaderNotAvailable(f"{topic}-{index} has no leader now. Try again in a moment.")
        request = AskSequence(found.topic_id, index, assigned.leader_epoch, producer.producer_id, producer.epoch)
        received = await self._peers.call(assigned.leader, LAST_SEQUENCE, request, timeout_s=_PATIENCE_SECONDS + 2)
        reply: LastSequence = received.reply
        return reply.sequence

    async def _answer(self, _node_id: int, request: AskSequence, _body: memoryview) -> LastSequence:
        partition = self._find(request.topic_id, request.partition)
        if partition is None:
            raise NotLeader("This node does not have the partition, or not yet.")
        partition.check_leader(request.leader_epoch)
        sequence = partition.log.producers.last_sequence_of(request.producer_id, request.producer_epoch)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                error = await partition.committed(partition.log.end_offset)
        except TimeoutError:
            raise RequestTimedOut(f"What was written to {partition.id} is not committed yet. Try again.") from None
        if error is not None:
            raise error
        return LastSequence(sequence)
