"""What the controller decides: each function looks at the metadata and a request, and returns the records to commit.

Nothing here writes, waits or knows the time. The records become facts when the metadata log has them; an error raised
here means that nothing happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from penstock.cluster.metadata import ClusterMetadata
from penstock.cluster.records import (
    Endpoint,
    MetadataRecord,
    NodeRegistered,
    PartitionAssigned,
    ProducerIdsReserved,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from penstock.cluster.topic_config import check_setting
from penstock.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopicName,
    TopicExists,
)
from penstock.model import check_topic_name

PARTITIONS_MAX: Final = 10_000
PRODUCER_IDS_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic as somebody asks for it. None takes the cluster's default."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Sequence[Sequence[int]] | None = None


def create_topic(
    metadata: ClusterMetadata, spec: TopicSpec, topic_id: UUID, *, partitions: int, replication_factor: int
) -> list[MetadataRecord]:
    """A new topic; ``partitions`` and ``replication_factor`` are the defaults for what the spec leaves open."""
    check_topic_name(spec.name)
    if spec.name in metadata.topics:
        raise TopicExists(f"Topic {spec.name!r} already exists.")
    _check_no_twin(metadata, spec.name)
    for name, value in spec.configs.items():
        check_setting(name, value)
    if spec.assignment is not None:
        placement = _check_assignment(metadata, spec.assignment, len(spec.assignment))
    else:
        count = partitions if spec.partitions is None else spec.partitions
        factor = replication_factor if spec.replication_factor is None else spec.replication_factor
        _check_partition_count(count)
        placement = place(metadata, first=0, count=count, replication_factor=factor)
    records: list[MetadataRecord] = [TopicCreated(name=spec.name, topic_id=topic_id)]
    records += [TopicConfigured(topic_id=topic_id, key=key, value=value) for key, value in spec.configs.items()]
    records += _new_partitions(topic_id, 0, placement)
    return records


def delete_topic(metadata: ClusterMetadata, name: str) -> list[MetadataRecord]:
    return [TopicDeleted(topic_id=metadata.topic(name).topic_id)]


def add_partitions(
    metadata: ClusterMetadata, name: str, count: int, assignment: Sequence[Sequence[int]] | None = None
) -> list[MetadataRecord]:
    """Grow a topic to ``count`` partitions. Records that are there stay where they are."""
    topic = metadata.topic(name)
    present = len(topic.partitions)
    if count <= present:
        raise InvalidPartitions(
            f"Topic {name!r} has {present} partitions; partitions can be added, not removed, so ask for more than that."
        )
    _check_partition_count(count)
    if assignment is not None:
        placement = _check_assignment(metadata, assignment, count - present)
    else:
        placement = place(metadata, first=present, count=count - present, replication_factor=topic.replication_factor)
    return _new_partitions(topic.topic_id, present, placement)


def configure_topic(metadata: ClusterMetadata, name: str, changes: Mapping[str, str | None]) -> list[MetadataRecord]:
    """Set settings, or unset those whose value is None."""
    topic = metadata.topic(name)
    for key, value in changes.items():
        check_setting(key, value)
    return [TopicConfigured(topic_id=topic.topic_id, key=key, value=value) for key, value in changes.items()]


def register_node(
    metadata: ClusterMetadata, node_id: int, endpoints: Sequence[Endpoint], rack: str | None
) -> list[MetadataRecord]:
    """A node came up: it gets a new epoch, and so does every partition that it leads."""
    known = metadata.nodes.get(node_id)
    records: list[MetadataRecord] = [
        NodeRegistered(node_id=node_id, epoch=known.epoch + 1 if known else 0, endpoints=tuple(endpoints), rack=rack)
    ]
    for topic in metadata.topics.values():
        records += [_reelect(partition) for partition in topic.partitions if partition.leader == node_id]
    return records


def reserve_producer_ids(metadata: ClusterMetadata, node_id: int) -> ProducerIdsReserved:
    """A block of producer ids for a node to hand out without asking again."""
    first = metadata.next_producer_id
    return ProducerIdsReserved(node_id=node_id, first_producer_id=first, next_producer_id=first + PRODUCER_IDS_AT_ONCE)


def place(metadata: ClusterMetadata, *, first: int, count: int, replication_factor: int) -> list[tuple[int, ...]]:
    """Spread replicas over the nodes in turn, so that leaders and followers are even."""
    nodes = sorted(metadata.nodes)
    if not 1 <= replication_factor <= len(nodes):
        raise InvalidReplicationFactor(
            f"Replication factor {replication_factor} needs as many nodes; the cluster has {len(nodes)}."
        )
    return [
        tuple(nodes[(first + index + step) % len(nodes)] for step in range(replication_factor))
        for index in range(count)
    ]


def _new_partitions(topic_id: UUID, first: int, placement: Sequence[tuple[int, ...]]) -> list[MetadataRecord]:
    return [
        PartitionAssigned(
            topic_id=topic_id,
            partition=first + index,
            replicas=replicas,
            in_sync=replicas,
            leader=replicas[0],
            leader_epoch=0,
            partition_epoch=0,
        )
        for index, replicas in enumerate(placement)
    ]


def _reelect(partition: PartitionAssigned) -> PartitionAssigned:
    return PartitionAssigned(
        topic_id=partition.topic_id,
        partition=partition.partition,
        replicas=partition.replicas,
        in_sync=partition.in_sync,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


def _check_partition_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitions(f"A topic has 1 to {PARTITIONS_MAX} partitions, not {count}.")


def _check_assignment(
    metadata: ClusterMetadata, assignment: Sequence[Sequence[int]], count: int
) -> list[tuple[int, ...]]:
    if len(assignment) != count or not assignment:
        raise InvalidReplicaAssignment(
            f"The assignment covers {len(assignment)} partitions where {count} are asked for."
        )
    for replicas in assignment:
        unknown = [node for node in replicas if node not in metadata.nodes]
        if unknown or not replicas or len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(
                f"Replicas {list(replicas)} must be different nodes of the cluster ({sorted(metadata.nodes)})."
            )
    if len({len(replicas) for replicas in assignment}) > 1:
        raise InvalidReplicaAssignment("Every partition of a topic must have the same number of replicas.")
    return [tuple(replicas) for replicas in assignment]


def _check_no_twin(metadata: ClusterMetadata, name: str) -> None:
    """'.' and '_' become the same character in metric names, so two topics must not differ in these alone."""
    folded = name.replace(".", "_")
    for other in metadata.topics:
        if other.replace(".", "_") == folded:
            raise InvalidTopicName(
                f"Topic {name!r} would collide with {other!r}: '.' and '_' count as the same character."
            )
