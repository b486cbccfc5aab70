"""Where clients reach nodes, and who leads a partition for a client that came to the wrong node (KIP-951)."""

from __future__ import annotations

from typing import Final

from penstock.broker.broker import Broker
from penstock.consensus.records import NO_LEADER, NodeRegistered
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.wire import LeaderHint, NodeAddress

_ANY_HOST: Final = frozenset({"", "0.0.0.0", "::"})
# The codes of a client that knows another leader than this node does.
_WRONG_LEADER: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def address_of(node: NodeRegistered, local_host: str) -> tuple[str, int]:
    """Where a client that reached this node at ``local_host`` reaches a node, also one that listens on any address."""
    for endpoint in node.endpoints:
        if endpoint.door == "kafka":
            return (local_host if endpoint.host in _ANY_HOST else endpoint.host), endpoint.port
    return "", -1


def leader_hint(broker: Broker, topic: str, index: int, code: int) -> LeaderHint | None:
    """The leader of a partition, for a client that was refused because it knows another one."""
    known = broker.metadata.topics.get(topic) if code in _WRONG_LEADER else None
    if known is None or not 0 <= index < len(known.partitions):
        return None
    leader, epoch = known.partitions[index].leader, known.partitions[index].leader_epoch
    node = None if leader in (NO_LEADER, broker.config.node_id) else broker.metadata.nodes.get(leader)
    return None if node is None or node.is_fenced else LeaderHint(leader, epoch)


def addresses_of(broker: Broker, hints: list[LeaderHint], local_host: str) -> list[NodeAddress]:
    """Where the leaders of these hints are, each once."""
    nodes = [broker.metadata.nodes.get(node_id) for node_id in dict.fromkeys(hint.leader_id for hint in hints)]
    return [NodeAddress(node.node_id, *address_of(node, local_host), node.rack) for node in nodes if node is not None]
