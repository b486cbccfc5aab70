"""The other nodes as coordinators need them: who leads what, and a way to ask."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.cluster.metadata import ClusterMetadata
from penstock.peers.port import Peers


@dataclass(frozen=True, slots=True)
class Neighbours:
    """This node among the others. Who leads is what the metadata says here, which may be a moment old."""

    node_id: int
    metadata: ClusterMetadata
    peers: Peers

    def leader_of(self, topic: str, partition: int) -> int:
        """The node that leads a partition, -1 for none; `UnknownTopic` or `UnknownPartition` if it is gone."""
        return self.metadata.partition(topic, partition).leader

    @property
    def is_alone(self) -> bool:
        """Whether nobody else can know what this node does not."""
        return len(self.metadata.nodes) <= 1
