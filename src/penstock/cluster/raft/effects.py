"""What a core wants done, for its driver to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.cluster.raft.leading import Read
from penstock.cluster.raft.messages import Entry, HardState, Message, Snapshot


@dataclass(slots=True)
class Effects:
    """What the driver has to do, in the order of the fields."""

    messages: list[Message] = field(default_factory=list)
    hard_state: HardState | None = None
    installed: Snapshot | None = None
    entries: list[Entry] = field(default_factory=list)
    promises: list[Message] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    failed_reads: list[Read] = field(default_factory=list)

    def forget_from(self, index: int) -> None:
        """Entries from an index on were cut before they were written."""
        self.entries = [entry for entry in self.entries if entry.index < index]

    def forget_up_to(self, index: int) -> None:
        """A snapshot stands for everything up to an index."""
        self.entries = [entry for entry in self.entries if entry.index > index]
        self.committed = [entry for entry in self.committed if entry.index > index]
