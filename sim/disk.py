"""What a member of a quorum has written and synced."""

from __future__ import annotations

from penstock.consensus.raft.core import Effects
from penstock.consensus.raft.messages import Entry, HardState, Members, Snapshot


class Disk:
    """A disk that holds what a core's effects say, as soon as it is told to write them."""

    def __init__(self, directory_id: str, members: Members) -> None:
        self.directory_id = directory_id
        self.hard_state = HardState()
        self.snapshot = Snapshot(0, 0, members, b"")
        self.entries: list[Entry] = []

    @property
    def last_index(self) -> int:
        return self.snapshot.index + len(self.entries)

    def term_at(self, index: int) -> int | None:
        if index == self.snapshot.index:
            return self.snapshot.term
        at = index - self.snapshot.index - 1
        return self.entries[at].term if 0 <= at < len(self.entries) else None

    def members(self) -> Members:
        return next((entry.members for entry in reversed(self.entries) if entry.members), self.snapshot.members)

    def has(self, entry: Entry) -> bool:
        """Whether an entry that is committed, or will be, is here."""
        return self.snapshot.index >= entry.index or self.term_at(entry.index) == entry.term

    def write(self, effects: Effects) -> None:
        if effects.hard_state is not None:
            self.hard_state = effects.hard_state
        if effects.installed is not None:
            keeps = self.term_at(effects.installed.index) == effects.installed.term
            after = self.entries[effects.installed.index - self.snapshot.index :] if keeps else []
            self.snapshot, self.entries = effects.installed, after
        for entry in effects.entries:
            at = entry.index - self.snapshot.index - 1
            if at < 0:
                continue
            del self.entries[at:]
            self.entries.append(entry)

    def compact(self, snapshot: Snapshot) -> None:
        if snapshot.index > self.snapshot.index:
            del self.entries[: snapshot.index - self.snapshot.index]
            self.snapshot = snapshot
