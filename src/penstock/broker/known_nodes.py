"""The nodes that clients are told of: those that are let in, and for a while those that were.

A node that was fenced a moment ago is most often one that restarts. Nobody is sent to it, since it leads nothing; but
a client that no longer finds it named takes down all it has for it, and some lose a second over that in which they
write to nobody (librdkafka looks for the leaders of what it took down once a second).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.clock import Clock
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import MetadataRecord, NodeChanged, NodeRegistered, NodeRemoved

_REMEMBERED_S: Final = 30.0


class KnownNodes:
    """Listens to the metadata, and remembers who was let in until when."""

    def __init__(self, metadata: ClusterMetadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._let_in: set[int] = set()
        self._fenced_at: dict[int, float] = {}

    def listed(self) -> list[NodeRegistered]:
        """In the order of their ids."""
        since = self._clock.monotonic() - _REMEMBERED_S
        return [
            node
            for node_id, node in sorted(self._metadata.nodes.items())
            if not node.is_fenced or self._fenced_at.get(node_id, since) > since
        ]

    def on_applied(self, _index: int, records: Sequence[MetadataRecord]) -> None:
        """An entry of the metadata log was applied."""
        for record in records:
            if isinstance(record, (NodeChanged, NodeRegistered, NodeRemoved)):
                # Of one that was let in by a snapshot nothing was heard before; but only those are fenced.
                self._look_at(record.node_id, was_let_in=isinstance(record, NodeChanged))

    def on_reset(self) -> None:
        """The metadata was replaced by a snapshot."""
        for node_id in sorted(self._let_in | self._metadata.nodes.keys()):
            self._look_at(node_id)

    def _look_at(self, node_id: int, *, was_let_in: bool = False) -> None:
        node = self._metadata.nodes.get(node_id)
        if node is not None and not node.is_fenced:
            self._let_in.add(node_id)
            self._fenced_at.pop(node_id, None)
        elif was_let_in or node_id in self._let_in:
            self._let_in.discard(node_id)
            self._fenced_at.setdefault(node_id, self._clock.monotonic())
