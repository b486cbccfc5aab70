"""The settings that apply to a group, to this node and to all nodes, each with the places its value comes from.

Names are those that Kafka's tools know. What a node was started with is shown and not changed while it runs; what can
be changed is kept in the metadata (`penstock.consensus.resource_config`). Doors show what this module finds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.broker.config import BrokerConfig
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.resource_config import (
    CLUSTER_WIDE,
    FOLLOWER_RATE,
    GROUP_SETTINGS,
    HEARTBEAT_INTERVAL,
    LEADER_RATE,
    NODE_SETTINGS,
    SESSION_TIMEOUT,
    UNLIMITED_RATE,
)


class Origin(enum.Enum):
    """Where a value comes from; the first of these that has one counts."""

    GROUP = "group"
    NODE = "node"
    CLUSTER = "cluster"  # set for all nodes
    STARTUP = "startup"  # the node's file, environment and flags, with their defaults
    DEFAULT = "default"


class Setting(NamedTuple):
    """A setting with its values, the one in force first."""

    name: str
    kind: str
    layers: Sequence[tuple[str | None, Origin]]
    doc: str
    is_changeable: bool = True


class _Started(NamedTuple):
    """A setting that a node was started with: its kind, and how it is read off the node's configuration."""

    kind: str
    read: Callable[[BrokerConfig], object]
    doc: str


STARTED_WITH: Final[Mapping[str, _Started]] = {
    "auto.create.topics.enable": _Started(
        "boolean", lambda c: c.auto_create_topics, "Whether using a topic that does not exist creates it."
    ),
    "broker.rack": _Started("string", lambda c: c.rack, "The rack or zone this node is in."),
    "default.replication.factor": _Started(
        "int",
        lambda c: c.topics.replication_factor or 3,
        "Replicas of a topic created without a number.",
    ),
    "group.consumer.heartbeat.interval.ms": _Started(
        "int", lambda c: c.groups.heartbeat_interval_ms, "How often members of the new protocol send a heartbeat."
    ),
    "group.consumer.session.timeout.ms": _Started(
        "int", lambda c: c.groups.session_timeout_ms, "Silence after which a member of the new protocol is removed."
    ),
    "group.initial.rebalance.delay.ms": _Started(
        "int", lambda c: c.groups.initial_delay_ms, "How long a new group waits for more members."
    ),
    "group.max.session.timeout.ms": _Started(
        "int", lambda c: c.groups.session_timeout_max_ms, "The longest session timeout."
    ),
    "group.max.size": _Started("int", lambda c: c.groups.members_max, "How many members a group may have."),
    "group.min.session.timeout.ms": _Started(
        "int", lambda c: c.groups.session_timeout_min_ms, "The shortest session timeout."
    ),
    "log.cleaner.backoff.ms": _Started(
        "long", lambda c: c.partitions.storage.housekeeping_interval_ms, "How often compaction checks every partition."
    ),
    "log.cleanup.policy": _Started(
        "list",
        lambda c: ",".join(
            name
            for name, is_on in (
                ("compact", c.partitions.topic_defaults.log.is_compacting),
                ("delete", c.partitions.topic_defaults.log.is_deleting),
            )
            if is_on
        ),
        "What topics do with old records.",
    ),
    "log.dirs": _Started("list", lambda c: c.data_dir, "Where the node's data is."),
    "log.index.interval.bytes": _Started(
        "int",
        lambda c: c.partitions.topic_defaults.log.index_interval_bytes,
        "Bytes of log that share one index entry.",
    ),
    "log.message.timestamp.type": _Started(
        "string",
        lambda c: "LogAppendTime" if c.partitions.topic_defaults.has_append_time else "CreateTime",
        "Whether records have the producer's time or that of the append.",
    ),
    "log.retention.bytes": _Started(
        "long",
        lambda c: c.partitions.topic_defaults.log.retention_bytes,
        "How large a partition may grow; -1 for no limit.",
    ),
    "log.retention.check.interval.ms": _Started(
        "long",
        lambda c: c.partitions.storage.retention_check_interval_ms,
        "How often retention checks every partition.",
    ),
    "log.retention.ms": _Started(
        "long", lambda c: c.partitions.topic_defaults.log.retention_ms, "How long records are kept; -1 for ever."
    ),
    "log.roll.ms": _Started(
        "long", lambda c: c.partitions.topic_defaults.log.segment_ms, "When a segment is closed for its age."
    ),
    "log.segment.bytes": _Started(
        "int", lambda c: c.partitions.topic_defaults.log.segment_bytes, "When a segment is closed for its size."
    ),
    "message.max.bytes": _Started(
        "int", lambda c: c.partitions.topic_defaults.max_message_bytes, "The largest batch accepted."
    ),
    "node.id": _Started("int", lambda c: c.node_id, "This node's number."),
    "num.partitions": _Started("int", lambda c: c.topics.partitions, "Partitions of a topic created without a number."),
    "offsets.retention.minutes": _Started(
        "int", lambda c: c.groups.offsets_retention_ms // 60_000, "How long the offsets of an empty group are kept."
    ),
    "offsets.topic.num.partitions": _Started(
        "int", lambda c: c.groups.offsets_partitions, "Partitions of __consumer_offsets when it is created."
    ),
    "producer.id.expiration.ms": _Started(
        "int",
        lambda c: c.partitions.topic_defaults.log.producer_expiry_ms,
        "How long an idle producer's sequence numbers are kept.",
    ),
    "replica.lag.time.max.ms": _Started(
        "long", lambda c: c.cluster.replica_lag_ms, "When a follower that does not keep up is no longer in sync."
    ),
    "transaction.max.timeout.ms": _Started(
        "int", lambda c: c.transactions.timeout_max_ms, "The longest time a transaction may stay open."
    ),
    "transaction.state.log.num.partitions": _Started(
        "int", lambda c: c.transactions.state_partitions, "Partitions of __transaction_state when it is created."
    ),
    "transactional.id.expiration.ms": _Started(
        "int", lambda c: c.transactions.id_retention_ms, "How long an unused transactional id is kept."
    ),
}
_UNSET_RATES: Final[Mapping[str, Callable[[BrokerConfig], int]]] = {
    FOLLOWER_RATE: lambda c: c.cluster.replication_throttle_bytes,
    LEADER_RATE: lambda _: 0,
}
_UNSET_TIMES: Final[Mapping[str, Callable[[BrokerConfig], int]]] = {
    HEARTBEAT_INTERVAL: lambda c: c.groups.heartbeat_interval_ms,
    SESSION_TIMEOUT: lambda c: c.groups.session_timeout_ms,
}


def group_settings(config: BrokerConfig, metadata: ClusterMetadata, group: str) -> Iterator[Setting]:
    """A group's settings, whether it exists or not; those of the node's file where it has none of its own."""
    own = metadata.resource_configs("group", group)
    for name, doc in GROUP_SETTINGS.items():
        layers = [(own[name], Origin.GROUP)] if name in own else []
        yield Setting(name, "int", [*layers, (str(_UNSET_TIMES[name](config)), Origin.DEFAULT)], doc)


def node_settings(config: BrokerConfig, metadata: ClusterMetadata) -> Iterator[Setting]:
    """This node's settings: first those that can be changed while it runs."""
    own = metadata.resource_configs("node", str(config.node_id))
    everywhere = metadata.resource_configs("node", CLUSTER_WIDE)
    for name, doc in NODE_SETTINGS.items():
        set_at = ((own, Origin.NODE), (everywhere, Origin.CLUSTER))
        layers = [(values[name], origin) for values, origin in set_at if name in values]
        unset = _UNSET_RATES[name](config)
        layers.append((str(unset or UNLIMITED_RATE), Origin.STARTUP if unset else Origin.DEFAULT))
        yield Setting(name, "long", layers, doc)
    for name, started in STARTED_WITH.items():
        layers_of_one = [(_shown(started.read(config)), Origin.STARTUP)]
        yield Setting(name, started.kind, layers_of_one, started.doc, is_changeable=False)


def set_for(metadata: ClusterMetadata, node: str) -> Iterator[Setting]:
    """What is set for one node, or for all of them (`CLUSTER_WIDE`)."""
    values = metadata.resource_configs("node", node)
    origin = Origin.CLUSTER if node == CLUSTER_WIDE else Origin.NODE
    for name, doc in NODE_SETTINGS.items():
        if name in values:
            yield Setting(name, "long", [(values[name], origin)], doc)


def _shown(value: object) -> str | None:
    """A value as Kafka writes it."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
