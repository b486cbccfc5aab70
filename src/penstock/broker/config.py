"""What the broker needs to know: this node's place in the cluster, and the sections of the settings its layers take."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.config.settings import (
    ClusterSettings,
    GroupSettings,
    ScheduleSettings,
    SecuritySettings,
    TopicDefaults,
    TransactionSettings,
)
from penstock.consensus.records import Endpoint
from penstock.partitions.config import PartitionsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one node's broker."""

    node_id: int
    data_dir: Path
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    auto_create_topics: bool = True
    topics: TopicDefaults = field(default_factory=TopicDefaults)
    partitions: PartitionsConfig = field(default_factory=PartitionsConfig)
    groups: GroupSettings = field(default_factory=GroupSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    schedules: ScheduleSettings = field(default_factory=ScheduleSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
