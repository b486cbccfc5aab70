"""Acks on their way into a transaction: it hears of the companions' partitions before anything is written there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.broker.coordination.messages import ProducerIdentity
from penstock.errors import GroupNotFound
from penstock.model import queue_state_topic

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


async def enter_acks(
    broker: Broker, transaction: str, writer: str, places: Iterable[tuple[str, int]]
) -> ProducerIdentity | None:
    """As whom a writer acks messages of these partitions in a joint transaction; None if there are none."""
    partitions: dict[str, set[int]] = {}
    for topic, partition in places:
        partitions.setdefault(topic, set()).add(partition)
    producer: ProducerIdentity | None = None
    for topic, indexes in sorted(partitions.items()):
        companion = broker.metadata.topics.get(queue_state_topic(topic))
        if companion is None:
            raise GroupNotFound(f"No queue group reads topic {topic!r}.")
        producer = await broker.joint.entrance.enter(transaction, writer, companion, frozenset(indexes))
    return producer
