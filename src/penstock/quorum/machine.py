"""The metadata as the quorum's entries make it: what is applied, up to which index, and who is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.cluster.metadata import ClusterMetadata
from penstock.cluster.raft.effects import Effects
from penstock.cluster.raft.log import RaftLog
from penstock.cluster.raft.messages import Entry, Kind, Snapshot
from penstock.cluster.records import MetadataRecord, decode_records, encode_records
from penstock.quorum.waiting import Waiting

OnApplied = Callable[[int, Sequence[MetadataRecord]], None]
OnReset = Callable[[], None]


class Machine:
    """Applies committed entries in order, all records of one entry in one step."""

    def __init__(self, waiting: Waiting) -> None:
        self.metadata = ClusterMetadata()  # the same object for ever
        self.applied_index = 0
        self._waiting = waiting
        self._listeners: list[tuple[OnApplied, OnReset]] = []

    def listen(self, on_applied: OnApplied, on_reset: OnReset) -> None:
        self._listeners.append((on_applied, on_reset))

    def apply(self, effects: Effects) -> None:
        """Take over an installed snapshot and what is committed behind it."""
        if effects.installed is not None and effects.installed.index > self.applied_index:
            self.restore(effects.installed)
            for _, on_reset in self._listeners:
                on_reset()
        for entry in effects.committed:
            if entry.index > self.applied_index:
                self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        assert entry.index == self.applied_index + 1, "entries are applied in order"
        records = decode_records(entry.data) if entry.kind is Kind.COMMAND else []
        for record in records:
            self.metadata.apply(record)
        self.applied_index = entry.index
        for on_applied, _ in self._listeners:
            on_applied(entry.index, records)
        self._waiting.on_applied(entry.index, entry.term)

    def restore(self, snapshot: Snapshot) -> None:
        """Begin anew with a snapshot."""
        self.metadata.reset()
        for record in decode_records(snapshot.data or b"[]"):
            self.metadata.apply(record)
        self.applied_index = snapshot.index
        self._waiting.on_reached(snapshot.index)

    def snapshot(self, log: RaftLog) -> Snapshot:
        """The metadata as it is now, in place of all entries that were applied."""
        index = self.applied_index
        term = log.term_at(index)
        assert term is not None, "what is applied is in the log"
        return Snapshot(index, term, log.members_at(index), encode_records(self.metadata.to_records()))
