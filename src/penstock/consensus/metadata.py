"""The cluster's metadata as a state machine: `apply` is the only way it changes.

A snapshot is simply the shortest list of records that rebuilds the state, so there is one path from records to state,
whether they come from the log, a snapshot or another node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod
from uuid import UUID

import msgspec

from penstock.access.rules import AccessRules
from penstock.consensus.records import (
    AclAdded,
    AclRemoved,
    ApiKeyIssued,
    ApiKeyRevoked,
    ClusterCreated,
    CredentialRemoved,
    CredentialSet,
    MetadataRecord,
    NodeChanged,
    NodeRegistered,
    NodeRemoved,
    PartitionAssigned,
    ProducerIdsReserved,
    ResourceConfigured,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
)
from penstock.consensus.resource_config import ResourceKind
from penstock.errors import UnknownPartition, UnknownTopic


@dataclass(slots=True)
class Topic:
    """A topic with its partitions and the settings that differ from the defaults."""

    name: str
    topic_id: UUID
    partitions: list[PartitionAssigned] = field(default_factory=list)
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def replication_factor(self) -> int:
        """How many replicas a partition has, not counting those that are only on their way."""
        if not self.partitions:
            return 0
        return len(self.partitions[0].replicas) - len(self.partitions[0].adding)


class ClusterMetadata:
    """Nodes, topics, partitions and reservations, as of ``version`` applied records."""

    def __init__(self) -> None:
        self.version = 0
        self.cluster_id = ""
        self.next_producer_id = 0
        self.nodes: dict[int, NodeRegistered] = {}
        self.topics: dict[str, Topic] = {}
        self.configured: dict[tuple[ResourceKind, str], dict[str, str]] = {}  # groups and nodes with settings
        self.access = AccessRules()
        self._topics_by_id: dict[UUID, Topic] = {}

    def reset(self) -> None:
        """Begin anew, as before a snapshot is applied. Every holder of this object sees the new state."""
        self.version = 0
        self.cluster_id = ""
        self.next_producer_id = 0
        self.nodes.clear()
        self.topics.clear()
        self.configured.clear()
        self.access.reset()
        self._topics_by_id.clear()

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"There is no topic {name!r}.")
        return topic

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self._topics_by_id.get(topic_id)

    def partition(self, name: str, index: int) -> PartitionAssigned:
        topic = self.topic(name)
        if not 0 <= index < len(topic.partitions):
            raise UnknownPartition(
                f"Topic {name!r} has no partition {index}; it has {len(topic.partitions)}, numbered from 0."
            )
        return topic.partitions[index]

    def replica_in_rack(self, name: str, index: int, rack: str) -> int | None:
        """A replica in sync, on a living node of a consumer's rack; None if there is none, or if the leader is there.

        Always the same one of several, so that the consumers of a partition share its page cache.
        """
        assigned = self.partition(name, index)
        near = [
            node_id
            for node_id in assigned.in_sync
            if (node := self.nodes.get(node_id)) is not None and node.rack == rack and not node.is_fenced
        ]
        return near[index % len(near)] if rack and near and assigned.leader not in near else None

    def resource_configs(self, kind: ResourceKind, name: str) -> Mapping[str, str]:
        """The settings that were set for a group or a node; the empty name is the default of all nodes."""
        return self.configured.get((kind, name), {})

    def apply(self, record: MetadataRecord) -> None:
        self._apply(record)
        self.version += 1

    @singledispatchmethod
    def _apply(self, record: MetadataRecord) -> None:
        raise AssertionError(f"no rule for {record!r}")

    @_apply.register
    def _(self, record: ClusterCreated) -> None:
        self.cluster_id = record.cluster_id

    @_apply.register
    def _(self, record: NodeRegistered) -> None:
        self.nodes[record.node_id] = record

    @_apply.register
    def _(self, record: NodeChanged) -> None:
        node = self.nodes.get(record.node_id)
        if node is not None and node.epoch == record.epoch:
            self.nodes[record.node_id] = msgspec.structs.replace(
                node, is_fenced=record.is_fenced, is_draining=record.is_draining
            )

    @_apply.register
    def _(self, record: NodeRemoved) -> None:
        self.nodes.pop(record.node_id, None)
        self.configured.pop(("node", str(record.node_id)), None)

    @_apply.register
    def _(self, record: TopicCreated) -> None:
        topic = Topic(record.name, record.topic_id)
        self.topics[record.name] = topic
        self._topics_by_id[record.topic_id] = topic

    @_apply.register
    def _(self, record: TopicDeleted) -> None:
        topic = self._topics_by_id.pop(record.topic_id)
        del self.topics[topic.name]

    @_apply.register
    def _(self, record: TopicConfigured) -> None:
        configs = self._topics_by_id[record.topic_id].configs
        if record.value is None:
            configs.pop(record.key, None)
        else:
            configs[record.key] = record.value

    @_apply.register
    def _(self, record: ResourceConfigured) -> None:
        if record.configs:
            self.configured[record.kind, record.name] = record.configs
        else:
            self.configured.pop((record.kind, record.name), None)

    @_apply.register
    def _(self, record: PartitionAssigned) -> None:
        partitions = self._topics_by_id[record.topic_id].partitions
        if record.partition == len(partitions):
            partitions.append(record)
        else:
            partitions[record.partition] = record

    @_apply.register
    def _(self, record: ProducerIdsReserved) -> None:
        self.next_producer_id = record.next_producer_id

    @_apply.register
    def _(self, record: CredentialSet) -> None:
        self.access.set_credential(record.user, record.credential)

    @_apply.register
    def _(self, record: CredentialRemoved) -> None:
        self.access.remove_credential(record.user, record.mechanism)

    @_apply.register
    def _(self, record: AclAdded) -> None:
        self.access.add_acl(record.acl)

    @_apply.register
    def _(self, record: AclRemoved) -> None:
        self.access.remove_acl(record.acl)

    @_apply.register
    def _(self, record: ApiKeyIssued) -> None:
        self.access.issue_key(record.key)

    @_apply.register
    def _(self, record: ApiKeyRevoked) -> None:
        self.access.revoke_key(record.key_id)

    def to_records(self) -> list[MetadataRecord]:
        """The shortest history that leads to this state."""
        records: list[MetadataRecord] = [ClusterCreated(cluster_id=self.cluster_id), *self.nodes.values()]
        for topic in self.topics.values():
            records.append(TopicCreated(name=topic.name, topic_id=topic.topic_id))
            records += [
                TopicConfigured(topic_id=topic.topic_id, key=key, value=value) for key, value in topic.configs.items()
            ]
            records += topic.partitions
        records += [
            ResourceConfigured(kind=kind, name=name, configs=configs)
            for (kind, name), configs in self.configured.items()
        ]
        if self.next_producer_id:
            first = last = self.next_producer_id
            records.append(ProducerIdsReserved(node_id=-1, first_producer_id=first, next_producer_id=last))
        records += [
            CredentialSet(user=user, credential=credential)
            for user, held in self.access.credentials.items()
            for credential in held.values()
        ]
        records += [AclAdded(acl=acl) for acl in self.access.acls]
        records += [ApiKeyIssued(key=key) for key in self.access.keys.values()]
        return records


def min_in_sync(partition: PartitionAssigned, configured: int) -> int:
    """How many replicas must be in sync: the setting, but never more than there are; where it is 0, more than half.

    One rule for leaders that commit and a controller that elects, because both must agree: a replica that fell out
    while too few were in sync may still lead (KIP-966), and that is sound only as long as no leader commits anything
    with so few. So the controller takes the lowest number that any leader may go by.

    Replicas that are only on their way do not count: a move must not make a partition ask for more than it has.
    """
    if configured:
        return min(configured, len(partition.replicas))
    return more_than_half(len(partition.replicas) - len(partition.adding))


def more_than_half(count: int) -> int:
    return count // 2 + 1
