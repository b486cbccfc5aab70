"""What a handler knows about the request it answers."""

from __future__ import annotations

from typing import NamedTuple

from penstock.broker.broker import Broker
from penstock.cluster.records import NodeRegistered

_ANY_HOST = {"", "0.0.0.0", "::"}


class Exchange(NamedTuple):
    """One request's surroundings: the broker, who asks, and in which version."""

    broker: Broker
    version: int
    client_id: str | None
    local_host: str
    peer_host: str

    def address_of(self, node: NodeRegistered) -> tuple[str, int]:
        """Where this client reaches a node."""
        return address_of(node, self.local_host)


def address_of(node: NodeRegistered, local_host: str) -> tuple[str, int]:
    """Where a client that reached us at ``local_host`` reaches a node; one that listens everywhere, right there."""
    for endpoint in node.endpoints:
        if endpoint.door == "kafka":
            return (local_host if endpoint.host in _ANY_HOST else endpoint.host), endpoint.port
    return "", -1
