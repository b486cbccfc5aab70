"""A node's settings, those of groups and of loggers, under the names that Kafka's tools know.

What comes from the node's file and flags is shown and not changed here. What can be changed while the node runs is kept
in the metadata (`penstock.cluster.resource_config`). The levels of loggers are forgotten when the node stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from penstock.broker.config import BrokerConfig
from penstock.cluster.resource_config import FOLLOWER_RATE, HEARTBEAT_INTERVAL, LEADER_RATE, SESSION_TIMEOUT
from penstock.errors import InvalidConfig


class NodeSetting(NamedTuple):
    """One setting of a node: its kind, and how it is read off the node's own configuration."""

    kind: str
    read: Callable[[BrokerConfig], object]
    doc: str


NODE_SETTINGS: Final[Mapping[str, NodeSetting]] = {
    "auto.create.topics.enable": NodeSetting(
        "boolean", lambda c: c.auto_create_topics, "Whether naming a topic that is not there makes it."
    ),
    "broker.rack": NodeSetting("string", lambda c: c.rack, "The rack or zone this node is in."),
    "default.replication.factor": NodeSetting(
        "int",
        lambda c: c.default_replication_factor or 3,
        "Replicas of a topic that does not say.",
    ),
    "group.consumer.heartbeat.interval.ms": NodeSetting(
        "int", lambda c: c.groups.heartbeat_interval_ms, "How often members of the new protocol are to be heard of."
    ),
    "group.consumer.session.timeout.ms": NodeSetting(
        "int", lambda c: c.groups.session_timeout_ms, "When members of the new protocol count as gone."
    ),
    "group.initial.rebalance.delay.ms": NodeSetting(
        "int", lambda c: c.groups.initial_delay_ms, "How long a new group waits for more members."
    ),
    "group.max.session.timeout.ms": NodeSetting(
        "int", lambda c: c.groups.session_timeout_max_ms, "The longest session timeout."
    ),
    "group.max.size": NodeSetting("int", lambda c: c.groups.members_max, "How many members a group may have."),
    "group.min.session.timeout.ms": NodeSetting(
        "int", lambda c: c.groups.session_timeout_min_ms, "The shortest session timeout."
    ),
    "log.cleaner.backoff.ms": NodeSetting(
        "long", lambda c: c.housekeeping_interval_ms, "How often compaction looks at every partition."
    ),
    "log.cleanup.policy": NodeSetting(
        "list",
        lambda c: ",".join(
            name
            for name, is_on in (
                ("compact", c.topic_defaults.log.is_compacting),
                ("delete", c.topic_defaults.log.is_deleting),
            )
            if is_on
        ),
        "What topics do with old records.",
    ),
    "log.dirs": NodeSetting("list", lambda c: c.data_dir, "Where the node's data is."),
    "log.index.interval.bytes": NodeSetting(
        "int", lambda c: c.topic_defaults.log.index_interval_bytes, "Bytes of log that share one index entry."
    ),
    "log.message.timestamp.type": NodeSetting(
        "string",
        lambda c: "LogAppendTime" if c.topic_defaults.has_append_time else "CreateTime",
        "Whose time records have.",
    ),
    "log.retention.bytes": NodeSetting(
        "long", lambda c: c.topic_defaults.log.retention_bytes, "How large a partition may grow; -1 for no limit."
    ),
    "log.retention.check.interval.ms": NodeSetting(
        "long", lambda c: c.retention_check_interval_ms, "How often retention looks at every partition."
    ),
    "log.retention.ms": NodeSetting(
        "long", lambda c: c.topic_defaults.log.retention_ms, "How long records are kept; -1 for ever."
    ),
    "log.roll.ms": NodeSetting(
        "long", lambda c: c.topic_defaults.log.segment_ms, "When a segment is closed for its age."
    ),
    "log.segment.bytes": NodeSetting(
        "int", lambda c: c.topic_defaults.log.segment_bytes, "When a segment is closed for its size."
    ),
    "message.max.bytes": NodeSetting("int", lambda c: c.topic_defaults.max_message_bytes, "The largest batch taken."),
    "node.id": NodeSetting("int", lambda c: c.node_id, "This node's number."),
    "num.partitions": NodeSetting("int", lambda c: c.default_partitions, "Partitions of a topic that does not say."),
    "offsets.retention.minutes": NodeSetting(
        "int", lambda c: c.groups.offsets_retention_ms // 60_000, "How long the offsets of an empty group are kept."
    ),
    "offsets.topic.num.partitions": NodeSetting(
        "int", lambda c: c.offsets_partitions, "Partitions of __consumer_offsets when it is made."
    ),
    "producer.id.expiration.ms": NodeSetting(
        "int", lambda c: c.topic_defaults.log.producer_expiry_ms, "How long a silent producer's numbers are remembered."
    ),
    "replica.lag.time.max.ms": NodeSetting(
        "long", lambda c: c.cluster.replica_lag_ms, "When a follower that does not keep up is no longer in sync."
    ),
    "transaction.max.timeout.ms": NodeSetting(
        "int", lambda c: c.transactions.timeout_max_ms, "The longest time a transaction may stay open."
    ),
    "transaction.state.log.num.partitions": NodeSetting(
        "int", lambda c: c.transactions_partitions, "Partitions of __transaction_state when it is made."
    ),
    "transactional.id.expiration.ms": NodeSetting(
        "int", lambda c: c.transactions.retention_ms, "How long an unused transactional id is remembered."
    ),
}
# What settings that are kept in the metadata are where they are not set.
UNSET_RATES: Final[Mapping[str, Callable[[BrokerConfig], int]]] = {
    FOLLOWER_RATE: lambda c: c.cluster.replication_throttle_bytes,
    LEADER_RATE: lambda _: 0,
}
UNSET_TIMES: Final[Mapping[str, Callable[[BrokerConfig], int]]] = {
    HEARTBEAT_INTERVAL: lambda c: c.groups.heartbeat_interval_ms,
    SESSION_TIMEOUT: lambda c: c.groups.session_timeout_ms,
}


def show(value: object) -> str | None:
    """A value as Kafka writes it."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# -- loggers -----------------------------------------------------------------------------------------------------------

ROOT_LOGGER: Final = "root"
_LEVELS: Final = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 1,
}


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT_LOGGER else name)


def loggers() -> dict[str, str]:
    """Every logger of this process with its level."""
    names = [
        ROOT_LOGGER,
        "penstock",
        *(name for name in logging.root.manager.loggerDict if name.startswith("penstock.")),
    ]
    return {name: _level_name(_logger(name).getEffectiveLevel()) for name in sorted(set(names))}


def _level_name(level: int) -> str:
    return next((name for name, number in reversed(_LEVELS.items()) if number <= level and name != "TRACE"), "DEBUG")


def change_loggers(changes: Mapping[str, str | None], *, validate_only: bool) -> None:
    """Set the levels of loggers, or with None let them have that of the logger above."""
    known = loggers()
    for name, value in changes.items():
        if name not in known:
            raise InvalidConfig(f"There is no logger {name!r}.")
        if value is not None and value not in _LEVELS:
            raise InvalidConfig(f"Logger {name}: {value!r} is not one of {', '.join(_LEVELS)}.")
        if value is None and name == ROOT_LOGGER:
            raise InvalidConfig("The level of the root logger can be set, but not removed.")
    if not validate_only:
        for name, value in changes.items():
            _logger(name).setLevel(logging.NOTSET if value is None else _LEVELS[value])
