"""Which replica a client should turn to: the leader, one in the client's own rack, or the one that leads by now.

Where follower reads are switched on, a leader sends consumers of another rack to a replica in theirs (KIP-392), and a
follower serves what it knows to be committed. A client that comes to the wrong node is told who leads, so that it need
not ask for metadata first (KIP-951).
"""

from __future__ import annotations

from typing import Final

from penstock.broker.broker import Broker
from penstock.broker.partition import Partition
from penstock.cluster.records import NO_LEADER, PartitionAssigned
from penstock.errors import FencedLeaderEpoch, NotLeader, OffsetNotAvailable, UnknownLeaderEpoch
from penstock.kafka.exchange import address_of
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.wire import LeaderHint, NodeAddress

FIRST_RACK_VERSION: Final = 11  # of Fetch: from here on it says where the consumer is
NOBODY: Final = -1
# What a client hears that knows another leader than we do.
_MISTAKEN: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def check_follower(partition: Partition, epoch: int, offset: int) -> None:
    """Refuse unless a follower can be read from ``offset`` by somebody who knows the leader of ``epoch``."""
    if partition.is_held:
        raise NotLeader(f"{partition.id} is being brought in line with its leader here. Ask the leader.")
    known = partition.leader_epoch
    if 0 <= epoch < known:
        raise FencedLeaderEpoch(f"{partition.id} is in leader epoch {known}; you know {epoch}.")
    if epoch > known:
        raise UnknownLeaderEpoch(f"{partition.id} is in leader epoch {known} here; you know {epoch} already.")
    if offset > partition.log.end_offset:
        raise OffsetNotAvailable(f"This replica of {partition.id} has not got as far as offset {offset} yet.")


def nearest_replica(broker: Broker, partition: Partition, rack: str) -> int:
    """A replica in sync in the consumer's rack, if the leader is not there itself; else `NOBODY`."""
    if not rack or rack == broker.config.rack:
        return NOBODY
    assigned = _assigned(broker, *partition.id)
    nodes = broker.metadata.nodes
    near = [
        node_id
        for node_id in (() if assigned is None else assigned.in_sync)
        if node_id in nodes and nodes[node_id].rack == rack and not nodes[node_id].is_fenced
    ]
    return near[partition.id.partition % len(near)] if near else NOBODY


def hint_of(broker: Broker, topic: str, index: int, code: int) -> LeaderHint | None:
    """Who leads a partition, for a client that has just been refused because it knows somebody else."""
    assigned = _assigned(broker, topic, index) if code in _MISTAKEN else None
    if assigned is None or assigned.leader in (NO_LEADER, broker.config.node_id):
        return None
    node = broker.metadata.nodes.get(assigned.leader)
    return None if node is None or node.is_fenced else LeaderHint(assigned.leader, assigned.leader_epoch)


def addresses_of(broker: Broker, hints: list[LeaderHint], local_host: str) -> list[NodeAddress]:
    """Where the leaders that were hinted at are, each once."""
    nodes = [broker.metadata.nodes.get(node_id) for node_id in dict.fromkeys(hint.leader_id for hint in hints)]
    return [NodeAddress(node.node_id, *address_of(node, local_host), node.rack) for node in nodes if node is not None]


def _assigned(broker: Broker, topic: str, index: int) -> PartitionAssigned | None:
    known = broker.metadata.topics.get(topic)
    return known.partitions[index] if known is not None and 0 <= index < len(known.partitions) else None
