"""The companion of a topic: the internal topic that holds what its queue groups remember (docs/decisions/0012).

The controller keeps a companion like its parent: as many partitions on the same replicas, led by the same nodes, and
deleted with it. All that is left to do here is to ask for it when a topic gets its first queue group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.commands import CreateTopic
from penstock.cluster.metadata import Topic
from penstock.errors import PolicyViolation, TopicExists
from penstock.model import is_internal, queue_state_topic

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


async def ensure_companion(broker: Broker, topic: str) -> Topic:
    """The companion of a topic, made if this is the first time that somebody needs it.

    When it returns, the partitions that this node has of it are open here. Whoever comes second finds what the first
    one made; a topic that is deleted meanwhile is an `UnknownTopic`.
    """
    if is_internal(topic):
        raise PolicyViolation(f"{topic!r} holds the broker's own state; it cannot be read as a queue.")
    name = queue_state_topic(topic)
    broker.metadata.topic(topic)
    if name not in broker.metadata.topics:
        try:
            await broker.command(CreateTopic(name=name, topic_id=broker.surroundings.new_id()))
        except TopicExists:
            pass  # two came at once
    companion = broker.metadata.topic(name)
    last = companion.partitions[-1]
    if broker.config.node_id in last.replicas and not broker.replicas.has(name, last.partition):
        await broker.settled()
    return companion
