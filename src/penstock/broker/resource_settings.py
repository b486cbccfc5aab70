"""Settings of groups and of this node as the metadata has them: looked up for groups, put in force for the node."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.settings import GroupSettings
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import MetadataRecord, NodeRemoved, ResourceConfigured
from penstock.consensus.resource_config import (
    CLUSTER_WIDE,
    FOLLOWER_RATE,
    HEARTBEAT_INTERVAL,
    LEADER_RATE,
    SESSION_TIMEOUT,
    UNLIMITED_RATE,
)
from penstock.features.groups.config import MemberTimes
from penstock.partitions.replication.replication import Replication


class ResourceSettings:
    """What was set through the controller, where it counts."""

    def __init__(
        self, node_id: int, metadata: ClusterMetadata, replication: Replication, groups: GroupSettings
    ) -> None:
        self._node = str(node_id)
        self._metadata = metadata
        self._replication = replication
        self._groups = groups

    # -- groups -------------------------------------------------------------------------------------------------------

    def member_times(self, group_id: str) -> MemberTimes:
        """What members of a group are held to: its own settings before those of the node's file."""
        own = self._metadata.resource_configs("group", group_id)
        default = MemberTimes.of(self._groups)
        if not own:
            return default
        return MemberTimes(
            int(own.get(SESSION_TIMEOUT, default.session_timeout_ms)),
            int(own.get(HEARTBEAT_INTERVAL, default.heartbeat_interval_ms)),
        )

    # -- the node -----------------------------------------------------------------------------------------------------

    def on_applied(self, _index: int, records: Sequence[MetadataRecord]) -> None:
        """An entry of the metadata log was applied."""
        if any(isinstance(record, (ResourceConfigured, NodeRemoved)) for record in records):
            self.apply()

    def on_reset(self) -> None:
        """The metadata was replaced by a snapshot."""
        self.apply()

    def apply(self) -> None:
        """Put in force what is set for this node, or else for all nodes."""
        self._replication.limit_following(self._rate(FOLLOWER_RATE))
        self._replication.limit_leading(self._rate(LEADER_RATE))

    def _rate(self, name: str) -> int | None:
        """Bytes a second, 0 for any number; None where neither the node nor the cluster has a value."""
        own = self._metadata.resource_configs("node", self._node)
        value = own.get(name, self._metadata.resource_configs("node", CLUSTER_WIDE).get(name))
        return None if value is None else int(value) % UNLIMITED_RATE
