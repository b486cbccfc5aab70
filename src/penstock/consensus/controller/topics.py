"""Decisions on topics, on the settings of groups and nodes, and on the producer ids that nodes hand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from penstock.config.settings import GroupSettings
from penstock.consensus.controller.companions import (
    SHARED_CONFIGS,
    check_not_companion,
    companion_of,
    create_companion,
    grow_companion,
)
from penstock.consensus.controller.draft import ControllerView, MetadataDraft, Rules
from penstock.consensus.controller.placement import check_assignment, default_replication_factor, place
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.quota_config import check_quota
from penstock.consensus.records import (
    MetadataRecord,
    PartitionAssigned,
    ProducerIdsReserved,
    ResourceConfigured,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from penstock.consensus.resource_config import (
    CLUSTER_WIDE,
    ResourceKind,
    check_group_settings,
    check_node_settings,
)
from penstock.consensus.topic_config import check_topic_settings
from penstock.errors import InvalidPartitions, InvalidRequest, InvalidTopicName, PolicyViolation, TopicExists
from penstock.model import check_topic_name, queue_parent

PARTITIONS_MAX: Final = 10_000
PRODUCER_IDS_AT_ONCE: Final = 1_000
_QUOTAS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic as a client asks for it. None takes the cluster's default."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Sequence[Sequence[int]] | None = None


def create_topic(
    metadata: ClusterMetadata, spec: TopicSpec, topic_id: UUID, *, partitions: int, replication_factor: int | None
) -> list[MetadataRecord]:
    """A new topic; ``partitions`` and ``replication_factor`` are the defaults for what the spec leaves open.

    The id tells topics of one name apart. Asked again with the same id, there is nothing left to do.
    """
    check_topic_name(spec.name)
    known = metadata.topics.get(spec.name)
    if known is not None and known.topic_id == topic_id:
        return []
    if known is not None:
        raise TopicExists(f"Topic {spec.name!r} already exists.")
    if queue_parent(spec.name) is not None:
        return create_companion(metadata, spec.name, topic_id)
    _check_no_twin(metadata, spec.name)
    check_topic_settings(spec.configs, spec.configs)
    if spec.assignment is not None:
        places = check_assignment(metadata, spec.assignment, len(spec.assignment))
    else:
        count = partitions if spec.partitions is None else spec.partitions
        factor = replication_factor if spec.replication_factor is None else spec.replication_factor
        if factor is None:
            factor = default_replication_factor(metadata)
        _check_partition_count(count)
        places = place(metadata, spec.name, first=0, count=count, replication_factor=factor)
    records: list[MetadataRecord] = [TopicCreated(name=spec.name, topic_id=topic_id)]
    records += [TopicConfigured(topic_id=topic_id, key=key, value=value) for key, value in spec.configs.items()]
    records += _new_partitions(metadata, topic_id, 0, places)
    return records


def delete_topic(metadata: ClusterMetadata, name: str) -> list[MetadataRecord]:
    """A topic goes, and with it what its queue groups remembered: the next topic of that name begins anew."""
    check_not_companion(name)
    topic = metadata.topic(name)
    companion = companion_of(metadata, topic)
    gone = (topic,) if companion is None else (companion, topic)
    return [TopicDeleted(topic_id=each.topic_id) for each in gone]


def add_partitions(
    metadata: ClusterMetadata, name: str, count: int, assignment: Sequence[Sequence[int]] | None = None
) -> list[MetadataRecord]:
    """Grow a topic to ``count`` partitions. Records that are there stay where they are."""
    check_not_companion(name)
    topic = metadata.topic(name)
    present = len(topic.partitions)
    if count <= present:
        raise InvalidPartitions(
            f"Topic {name!r} has {present} partitions; partitions can be added, not removed, so ask for more than that."
        )
    _check_partition_count(count)
    if assignment is not None:
        places = check_assignment(metadata, assignment, count - present)
    else:
        places = place(
            metadata, name, first=present, count=count - present, replication_factor=topic.replication_factor
        )
    added = _new_partitions(metadata, topic.topic_id, present, places)
    return [*added, *grow_companion(metadata, topic, added)]


def configure_topic(
    metadata: ClusterMetadata,
    name: str,
    changes: Mapping[str, str | None],
    rules: Rules | None = None,
    situation: ControllerView | None = None,
) -> list[MetadataRecord]:
    """Set settings, or unset those whose value is None."""
    check_not_companion(name)
    topic = metadata.topic(name)
    kept = {key: value for key, value in topic.configs.items() if key not in changes}
    check_topic_settings(changes, kept | {key: value for key, value in changes.items() if value is not None})
    draft = MetadataDraft(metadata, rules, situation)
    for key, value in changes.items():
        draft.configure(topic, key, value)
    shared = [key for key in SHARED_CONFIGS if key in changes]
    companion = companion_of(metadata, topic)
    if companion is not None:
        for key in shared:
            draft.configure(companion, key, changes[key])
    if shared:
        # A replica is eligible only below the old minimum; and a partition without a leader may get one now.
        draft.settle_all([*topic.partitions, *([] if companion is None else companion.partitions)])
    return draft.records()


def reserve_producer_ids(metadata: ClusterMetadata, node_id: int) -> ProducerIdsReserved:
    """A block of producer ids for a node to hand out without asking again."""
    first = metadata.next_producer_id
    return ProducerIdsReserved(node_id=node_id, first_producer_id=first, next_producer_id=first + PRODUCER_IDS_AT_ONCE)


def _new_partitions(
    metadata: ClusterMetadata, topic_id: UUID, first: int, places: Sequence[tuple[int, ...]]
) -> list[PartitionAssigned]:
    records: list[PartitionAssigned] = []
    for index, replicas in enumerate(places):
        living = tuple(node_id for node_id in replicas if not metadata.nodes[node_id].is_fenced)
        records.append(
            PartitionAssigned(
                topic_id=topic_id,
                partition=first + index,
                replicas=replicas,
                in_sync=living,
                leader=living[0],
                leader_epoch=0,
                partition_epoch=0,
            )
        )
    return records


def _check_partition_count(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitions(f"A topic has 1 to {PARTITIONS_MAX} partitions, not {count}.")


def _check_no_twin(metadata: ClusterMetadata, name: str) -> None:
    """'.' and '_' become the same character in metric names, so two topics must not differ in these alone."""
    folded = name.replace(".", "_")
    for other in metadata.topics:
        if queue_parent(other) is None and other.replace(".", "_") == folded:
            raise InvalidTopicName(
                f"Topic {name!r} would collide with {other!r}: '.' and '_' count as the same character."
            )


def configure_resource(
    metadata: ClusterMetadata,
    kind: ResourceKind,
    name: str,
    changes: Mapping[str, str | None],
    limits: GroupSettings,
) -> list[MetadataRecord]:
    """Set settings, or unset those whose value is None; no record where that changes nothing."""
    present = metadata.resource_configs(kind, name)
    merged = {**present, **changes}
    configs = {key: value for key, value in merged.items() if value is not None}
    if kind == "group":
        if not name:
            raise InvalidRequest("Settings of groups are set for one group; name it.")
        check_group_settings(changes, configs, limits)
    elif kind == "quota":
        check_quota(name, changes)
        _check_room(metadata, name)
    else:
        if name != CLUSTER_WIDE and name not in map(str, metadata.nodes):
            raise InvalidRequest(f"There is no node {name!r}; the empty name stands for all nodes.")
        check_node_settings(changes)
    return [] if configs == present else [ResourceConfigured(kind=kind, name=name, configs=configs)]


def _check_room(metadata: ClusterMetadata, name: str) -> None:
    """Every node keeps all quotas in memory."""
    quotas = sum(kind == "quota" for kind, _ in metadata.configured)
    if quotas >= _QUOTAS_MAX and ("quota", name) not in metadata.configured:
        raise PolicyViolation(f"There are {quotas} quotas already, which is the most. Remove some, or set a default.")
