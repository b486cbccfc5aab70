"""What the partitions of one node are kept and replicated by: sections of the settings, and what topics lie over."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.config.settings import ClusterSettings, Fsync, StorageSettings
from penstock.consensus.topic_config import TopicSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsConfig:
    """How the partitions of one node are kept and replicated."""

    topic_defaults: TopicSettings = field(default_factory=TopicSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)

    @property
    def syncs_before_ack(self) -> bool:
        """Whether ``acks=all`` means durable, not only written."""
        return self.storage.fsync is Fsync.EVERY
