"""The entries a member has, behind the snapshot that stands for all before them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.consensus.raft.messages import Entry, Members, Snapshot


class RaftLog:
    """Entries by index. The disk behind it is the driver's: `RaftLog` is what will be there when it has caught up."""

    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry] = ()) -> None:
        self.snapshot = snapshot
        self._entries = list(entries)
        assert all(entry.index == snapshot.index + 1 + at for at, entry in enumerate(self._entries)), "a gap"
        self._changes = [(entry.index, entry.members) for entry in self._entries if entry.members is not None]

    @property
    def first_index(self) -> int:
        return self.snapshot.index + 1

    @property
    def last_index(self) -> int:
        return self.snapshot.index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.snapshot.term

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None where there is none, or none any more."""
        if index == self.snapshot.index:
            return self.snapshot.term
        at = index - self.first_index
        return self._entries[at].term if 0 <= at < len(self._entries) else None

    def slice(self, first: int, limit: int, limit_bytes: int) -> tuple[Entry, ...]:
        """Up to ``limit`` entries from ``first`` on, and not many more bytes than wanted."""
        at = first - self.first_index
        found: list[Entry] = []
        for entry in self._entries[at : at + limit]:
            found.append(entry)
            limit_bytes -= len(entry.data)
            if limit_bytes <= 0:
                break
        return tuple(found)

    def up_to(self, first: int, last: int) -> list[Entry]:
        return self._entries[first - self.first_index : last - self.first_index + 1]

    def is_behind(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends so is at least as up to date as this one."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1, "entries follow on each other"
        self._entries.append(entry)
        if entry.members is not None:
            self._changes.append((entry.index, entry.members))

    def cut(self, index: int) -> None:
        """Forget all entries from ``index`` on."""
        del self._entries[index - self.first_index :]
        self._changes = [change for change in self._changes if change[0] < index]

    def compact(self, snapshot: Snapshot) -> None:
        """Let a snapshot of this member's own state stand for the entries up to its index."""
        assert self.term_at(snapshot.index) == snapshot.term, "a snapshot of another history"
        del self._entries[: snapshot.index - self.snapshot.index]
        self._changes = [change for change in self._changes if change[0] > snapshot.index]
        self.snapshot = snapshot

    def replace(self, snapshot: Snapshot) -> None:
        """Begin anew from a leader's snapshot; what follows it is kept if it is of the same history."""
        if self.term_at(snapshot.index) == snapshot.term:
            self.compact(snapshot)
        else:
            self.snapshot = snapshot
            self._entries = []
            self._changes = []

    def members(self) -> Members:
        """The last ones in the log, committed or not."""
        return self._changes[-1][1] if self._changes else self.snapshot.members

    def members_index(self) -> int:
        """Where they are."""
        return self._changes[-1][0] if self._changes else self.snapshot.index

    def members_at(self, index: int) -> Members:
        """Those as of an index that is not before the snapshot."""
        return next((members for at, members in reversed(self._changes) if at <= index), self.snapshot.members)

    def members_before(self) -> Members:
        """Those before the last change."""
        return self._changes[-2][1] if len(self._changes) > 1 else self.snapshot.members

    def first_of_term(self, index: int) -> int:
        """The first index of the run of entries with the same term that ends at ``index``."""
        term = self.term_at(index)
        while index > self.first_index and self.term_at(index - 1) == term:
            index -= 1
        return index
