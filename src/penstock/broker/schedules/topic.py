"""The topic ``__schedules``, whose partitions are the shards that schedules are kept in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cluster.metadata import Topic
from penstock.model import SCHEDULES_TOPIC

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# Nothing goes by age, size or key: whoever leads a shard cuts off what is no longer needed. Segments are small, because
# that frees whole ones, and because the last one is read from end to end after a crash.
_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(8 * 1024 * 1024),
    "max.message.bytes": str(256 * 1024 * 1024),  # whatever any topic takes, and more
}


async def ensure_schedules_topic(broker: Broker) -> Topic:
    """The topic, made with the first schedule; its partitions on this node are open when this returns."""
    topic = broker.metadata.topics.get(SCHEDULES_TOPIC)
    if topic is None:
        topic = await broker.ensure_internal_topic(SCHEDULES_TOPIC, broker.config.schedules_partitions, _CONFIGS)
    return topic
