"""What the broker needs to know; read once at the composition root."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from penstock.broker.groups.group import GroupConfig
from penstock.broker.schedules.config import ScheduleSettings
from penstock.broker.transactions.config import TransactionConfig
from penstock.broker.transactions.joint.config import JointConfig
from penstock.cluster.records import Endpoint
from penstock.cluster.topic_config import TopicSettings
from penstock.storage.config import DAY_MS


class Fsync(StrEnum):
    """When records are made durable."""

    EVERY = "every"  # before acks=all is answered, many producers sharing one sync
    INTERVAL = "interval"  # in the background, every so often
    NONE = "none"  # when the operating system likes, and when a segment is sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubConfig:
    """How often, and how fast, everything on the disk is read again."""

    interval_ms: int = DAY_MS  # 0: only when somebody asks for it
    bytes_per_second: int = 16 * 1024 * 1024  # more than a terabyte in a day


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one node's broker."""

    node_id: int
    data_dir: Path
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    fsync: Fsync = Fsync.EVERY
    # Records nobody waits for are synced this often too, except with Fsync.NONE.
    fsync_interval_ms: int = 1_000
    sync_threads: int = 4
    auto_create_topics: bool = True
    default_partitions: int = 3
    default_replication_factor: int | None = None  # three, or as many as there are nodes
    topic_defaults: TopicSettings = field(default_factory=TopicSettings)
    groups: GroupConfig = field(default_factory=GroupConfig)
    # Partitions of the offsets topic when it is first created: how many nodes can share the work of coordinating.
    offsets_partitions: int = 8
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    joint: JointConfig = field(default_factory=JointConfig)
    # The same of the transactions topic.
    transactions_partitions: int = 8
    schedules: ScheduleSettings = field(default_factory=ScheduleSettings)
    # And of the schedules topic.
    schedules_partitions: int = 8
    housekeeping_interval_ms: int = 10_000
    # How often retention looks for what is too old or too much; Kafka's own pace.
    retention_check_interval_ms: int = 300_000
    scrub: ScrubConfig = field(default_factory=ScrubConfig)
    cluster: ClusterConfig = field(default_factory=lambda: ClusterConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """How this node finds the others, and how patient they are with each other."""

    peers: tuple[tuple[int, str, int], ...] = ()  # the first nodes, this one included, as (id, host, port)
    join: tuple[str, int] | None = None
    voters: int = 3
    election_timeout_ms: int = 500
    heartbeat_interval_ms: int = 500
    session_timeout_ms: int = 2_000
    replica_lag_ms: int = 10_000
    replication_throttle_bytes: int = 0
    internal_replication_factor: int = 3
    follower_reads: bool = False
