"""What a feature may reach of the node that it runs on: logs, topics, time, the metadata, and the other nodes."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from uuid import UUID

from penstock.clock import Clock
from penstock.consensus.metadata import ClusterMetadata
from penstock.machines.clocks import PatientClock
from penstock.machines.leaders import Leaders
from penstock.network.port import Peers
from penstock.partitions.access import Partitions
from penstock.partitions.stats import BrokerStats
from penstock.partitions.topics import Topics
from penstock.supervision import Supervision


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Made once, at the composition root."""

    leaders: Leaders
    time: PatientClock
    partitions: Partitions
    topics: Topics
    stats: BrokerStats
    random: Random
    supervision: Supervision
    syncs_before_ack: bool  # whether ``acks=all`` means durable, not only written

    @property
    def node_id(self) -> int:
        return self.leaders.node_id

    @property
    def clock(self) -> Clock:
        return self.leaders.clock

    @property
    def metadata(self) -> ClusterMetadata:
        return self.leaders.metadata

    @property
    def peers(self) -> Peers:
        return self.leaders.peers

    def new_id(self) -> UUID:
        """An id that no other has."""
        return UUID(int=self.random.getrandbits(128), version=4)
