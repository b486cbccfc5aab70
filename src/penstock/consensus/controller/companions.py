"""Companions: the topic that holds what the queue groups of another topic, its parent, remember.

A companion has the partitions of its parent, each with the same replicas in the same order, and none of its own will:
it is made, grows and goes in the decisions in which its parent does, and `MetadataDraft.records` lets it follow
wherever its parent moves, replicas and leader alike (docs/decisions/0012). Its partitions have the numbers of its
parent's.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from penstock.consensus.controller.draft import MIN_IN_SYNC, UNCLEAN
from penstock.consensus.metadata import ClusterMetadata, Topic
from penstock.consensus.records import NO_LEADER, MetadataRecord, PartitionAssigned, TopicConfigured, TopicCreated
from penstock.errors import PolicyViolation, UnknownTopic
from penstock.model import QUEUE_STATE_PREFIX, is_internal, queue_parent

# What one segment holds that is no longer needed cannot be freed, so they are small.
SEGMENT_BYTES: Final = 8 * 1024 * 1024
# Nothing goes by age or size: the leader of a companion trims what its snapshots have made superfluous.
_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(SEGMENT_BYTES),
    # A snapshot is one record, and grows with what is in flight.
    "max.message.bytes": str(256 * 1024 * 1024),
}
# A companion is as safe and as available as its parent, so these two are always the parent's.
SHARED_CONFIGS: Final = (MIN_IN_SYNC, UNCLEAN)


def companion_of(metadata: ClusterMetadata, topic: Topic) -> Topic | None:
    """The companion that a topic has, if any."""
    return metadata.topics.get(f"{QUEUE_STATE_PREFIX}{topic.name}")


def check_not_companion(name: str) -> None:
    """Refuse what would set a companion apart from its parent."""
    parent = queue_parent(name)
    if parent is not None:
        raise PolicyViolation(f"{name!r} has the partitions, replicas and settings of {parent!r}; change those.")


def create_companion(metadata: ClusterMetadata, name: str, topic_id: UUID) -> list[MetadataRecord]:
    """A companion for the topic that its name tells of, as that one is right now."""
    parent_name = queue_parent(name)
    parent = None if parent_name is None else metadata.topics.get(parent_name)
    if parent is None:
        raise UnknownTopic(f"There is no topic {parent_name!r} whose queues {name!r} could hold.")
    if is_internal(parent.name):
        raise PolicyViolation(f"{parent.name!r} holds the broker's own state; it cannot be read as a queue.")
    configs = dict(_CONFIGS)
    configs.update({key: parent.configs[key] for key in SHARED_CONFIGS if key in parent.configs})
    records: list[MetadataRecord] = [TopicCreated(name=name, topic_id=topic_id)]
    records += [TopicConfigured(topic_id=topic_id, key=key, value=value) for key, value in configs.items()]
    records += [_mirror(metadata, topic_id, partition) for partition in parent.partitions]
    return records


def grow_companion(metadata: ClusterMetadata, topic: Topic, added: list[PartitionAssigned]) -> list[PartitionAssigned]:
    """The partitions that a companion gets because its parent does; none where there is no companion."""
    companion = companion_of(metadata, topic)
    return [] if companion is None else [_mirror(metadata, companion.topic_id, partition) for partition in added]


def _mirror(metadata: ClusterMetadata, topic_id: UUID, parent: PartitionAssigned) -> PartitionAssigned:
    """A new partition beside the parent's. It is empty, so every replica that is there is in sync.

    Where none is there, all count as in sync: the first to come back leads.
    """
    living = [node_id for node_id in parent.replicas if not metadata.nodes[node_id].is_fenced]
    in_sync = tuple(living or parent.replicas)
    leader = parent.leader if parent.leader in living else (living or [NO_LEADER])[0]
    return PartitionAssigned(
        topic_id=topic_id,
        partition=parent.partition,
        replicas=parent.replicas,
        in_sync=in_sync,
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        adding=parent.adding,
        removing=parent.removing,
    )
