"""Where the other nodes are reached, from whoever tells: the configuration, the nodes themselves, the metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.cluster.metadata import ClusterMetadata
from penstock.cluster.raft.messages import Entry, Kind
from penstock.cluster.records import MetadataRecord, NodeRegistered, decode_records
from penstock.peers.port import Peers
from penstock.quorum.greetings import Address


def internal_address(node: NodeRegistered) -> Address | None:
    """Where other nodes reach a node, by its registration."""
    return next(((door.host, door.port) for door in node.endpoints if door.door == "internal"), None)


class Addresses:
    """The addresses of nodes; whatever is new goes to the peers. A node knows its own address best."""

    def __init__(self, peers: Peers, me: int, mine: Address | None) -> None:
        self._peers = peers
        self._me = me
        self._known: dict[int, Address] = {}
        if mine is not None:
            self._known[me] = mine

    def node_ids(self) -> list[int]:
        return sorted(self._known)

    def learn(self, node_id: int, address: Address | None) -> None:
        """From the node itself, or from its registration. A node that was removed may be back: the peers forgot it."""
        if address is not None and node_id != self._me:
            self._known[node_id] = address
            self._peers.introduce(node_id, *address)

    def hear(self, addresses: Mapping[int, Address]) -> None:
        """From others, who may know less than we do."""
        for node_id, address in sorted(addresses.items()):
            if node_id not in self._known:
                self.learn(node_id, address)

    def read(self, records: Iterable[MetadataRecord]) -> None:
        """From metadata records."""
        for record in records:
            if isinstance(record, NodeRegistered):
                self.learn(record.node_id, internal_address(record))

    def read_entries(self, entries: Iterable[Entry]) -> None:
        """From entries that may not be committed: to look somewhere in vain does no harm."""
        for entry in entries:
            if entry.kind is Kind.COMMAND and b"NodeRegistered" in entry.data:
                self.read(decode_records(entry.data))

    def all(self, metadata: ClusterMetadata) -> dict[int, Address]:
        registered = {node_id: internal_address(node) for node_id, node in metadata.nodes.items()}
        return {node_id: address for node_id, address in registered.items() if address is not None} | self._known
