"""Stories of a member's disk: power is lost at every step of a life of writes, and what was said is always kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.clock import SystemClock
from penstock.consensus.quorum.store import QuorumStore
from penstock.consensus.raft.core import Effects
from penstock.consensus.raft.messages import Entry, EntryKind, HardState, Member, Members, Snapshot
from penstock.errors import DiskFull, StorageError
from penstock.testing.files import Crash, MemoryFiles
from sim.oracles import Violation

DIRECTORY: Final = Path("/data/metadata")
_ME: Final = Member(1, "disk-1")
_MEMBERS: Final = Members({1: "disk-1", 2: "disk-2", 3: "disk-3"})


def power_is_lost_at_any_step() -> None:
    """In another way at each: a part of what was not synced is lost."""
    whole = MemoryFiles()
    Life(whole).run()
    for step in range(1, whole.steps + 1):
        files = MemoryFiles(seed=step)
        files.crash_at = step
        life = Life(files)
        try:
            life.run()
        except Crash:
            files.crash()
        life.check(f"step {step}")


def only_a_later_part_of_a_write_survives() -> None:
    """Pages of one write reach the disk in any order. What nobody was told of must not keep a member from starting."""
    for seed in range(30):
        files = MemoryFiles(seed=seed)
        store = _open(files)
        store.form(_MEMBERS)
        store.write([Effects(hard_state=HardState(1, None), entries=_entries(1, 3, 1))])
        files.crash_at = files.steps + 8 + seed % 11  # in the middle of it, up to its sync
        try:
            store.write([Effects(entries=_entries(4, 20, 1))])
        except Crash:
            files.crash()
        found = _open(files).entries
        if len(found) < 3 or found != _entries(1, len(found), 1):
            raise Violation(f"kept promises: {len(found)} entries are left")
        _open(files).write([Effects(entries=_entries(len(found) + 1, 25, 1))])
        if _open(files).entries != _entries(1, 25, 1):
            raise Violation("kept promises: what was written after a crash is gone")


def a_sync_fails_and_only_the_process_is_started_anew() -> None:
    """What the kernel then shows is not on the disk. Nothing may rest on it before it was written once more."""
    for seed in range(5):
        files = MemoryFiles(seed=seed)
        store = _open(files)
        store.form(_MEMBERS)
        store.write([Effects(hard_state=HardState(1, None), entries=_entries(1, 3, 1))])
        files.is_failing_syncs = True
        try:
            store.write([Effects(entries=_entries(4, 30, 1))])
        except StorageError:
            files.is_failing_syncs = False
        files.crash(keeps_unsynced=True)
        again = _open(files)
        last = again.last_index
        again.write([Effects(entries=_entries(last + 1, last + 3, 1))])
        files.crash()
        if _open(files).entries != _entries(1, last + 3, 1):
            raise Violation("kept promises: entries are gone that only memory had")


def several_terms_go_in_one_write() -> None:
    """The last of them is the one in which this member has promised something."""
    files = MemoryFiles()
    store = _open(files)
    store.form(_MEMBERS)
    terms = [HardState(1, 2), HardState(2, None), HardState(3, 1)]
    store.write([Effects(hard_state=hard_state) for hard_state in terms])
    files.crash()
    if _open(files).hard_state != terms[-1]:
        raise Violation("kept promises: a vote is forgotten")


def a_leader_s_snapshot_finds_no_room() -> None:
    """Wherever the disk was full: the next try does what the first left undone."""
    for length in (3, 40):  # shorter than the snapshot, and of another history
        for step in range(1, 30):
            files = SharedDisk()
            store = _open(files)
            store.form(_MEMBERS)
            store.write([Effects(hard_state=HardState(1, None), entries=_entries(1, length, 1))])
            wanted = Effects(hard_state=HardState(2, None), installed=_snapshot(30, 2), entries=_entries(31, 33, 2))
            files.full_from = files.steps + step
            try:
                store.write([wanted])
            except DiskFull:
                files.full_from = None
                store.write([wanted])
            found = _open(files)
            if (found.snapshot, found.entries) != (_snapshot(30, 2), wanted.entries):
                raise Violation(f"kept promises: {found} after a disk that was full at step {step}")


class SharedDisk(MemoryFiles):
    """Others write there too: it is full from a step on, however much was freed."""

    full_from: int | None = None

    def has_room(self, wanted_bytes: int) -> bool:
        del wanted_bytes
        return self.full_from is None or self.steps < self.full_from


class Life:
    """What a member writes in its life, and what it has told others by then."""

    def __init__(self, files: MemoryFiles) -> None:
        self._files = files
        self._is_formed = False
        self._vote = HardState()
        self._stored: dict[int, int] = {}  # acknowledged: terms by index
        self._snapshot_index = 0
        self._at_risk = 1 << 60  # entries from here on may be gone: a leader has others in their place

    def run(self) -> None:
        store = _open(self._files)
        store.form(_MEMBERS)
        self._is_formed = True
        self._write(store, HardState(1, 2), _entries(1, 3, 1))
        self._write(store, None, _entries(4, 20, 1))
        self._write(store, HardState(2, None), _entries(12, 14, 2))
        snapshot = _snapshot(8, 1)
        store.save_snapshot(snapshot)
        self._write(store, HardState(3, 1), _entries(15, 24, 2))
        store.save_snapshot(_snapshot(16, 2))
        self._write(store, HardState(4, 3), _entries(31, 40, 4), installed=_snapshot(30, 4))
        self._write(store, HardState(5, 3), _entries(36, 37, 5))
        store.close()

    def _write(
        self, store: QuorumStore, vote: HardState | None, entries: list[Entry], installed: Snapshot | None = None
    ) -> None:
        self._at_risk = 0 if installed is not None else entries[0].index
        store.write([Effects(hard_state=vote, installed=installed, entries=entries)])
        self._at_risk = 1 << 60
        self._vote = vote or self._vote
        if installed is not None:
            self._snapshot_index = installed.index
        self._stored = {index: term for index, term in self._stored.items() if index < entries[0].index}
        self._stored |= {entry.index: entry.term for entry in entries}

    def check(self, when: str) -> None:
        """Start anew from what is left, and go on."""
        store = _open(self._files)
        if not store.is_formed:
            if self._is_formed:
                raise Violation(f"kept promises: a member forgot that it was one ({when})")
            return
        vote, told = store.hard_state, self._vote
        if vote.term < told.term or (vote.term == told.term and vote.voted_for != told.voted_for):
            raise Violation(f"kept promises: {told} became {vote} ({when})")
        found = {entry.index: entry.term for entry in store.entries}
        for index, term in self._stored.items():
            is_there = index <= store.snapshot.index or found.get(index) == term
            if not is_there and index < self._at_risk and index > self._snapshot_index:
                raise Violation(f"kept promises: entry {index} of term {term} is gone ({when})")
        following = store.last_index + 1
        store.write([Effects(hard_state=HardState(9, 1), entries=_entries(following, following + 1, 9))])
        again = _open(self._files)
        if again.last_index != following + 1 or again.hard_state != HardState(9, 1):
            raise Violation(f"kept promises: what was written after a crash is gone ({when})")


def _open(files: MemoryFiles) -> QuorumStore:
    return QuorumStore.open(files, DIRECTORY, _ME, SystemClock())


def _entries(first: int, last: int, term: int) -> list[Entry]:
    text = b'[{"type":"ClusterCreated","cluster_id":"%s"}]' % (b"x" * 40)
    return [Entry(index, term, EntryKind.COMMAND, text) for index in range(first, last + 1)]


def _snapshot(index: int, term: int) -> Snapshot:
    return Snapshot(index, term, _MEMBERS, b'[{"type":"ClusterCreated","cluster_id":"%d"}]' % index)


STORIES: Final[dict[str, Callable[[], None]]] = {
    tell.__name__.replace("_", " "): tell
    for tell in (
        a_leader_s_snapshot_finds_no_room,
        a_sync_fails_and_only_the_process_is_started_anew,
        only_a_later_part_of_a_write_survives,
        power_is_lost_at_any_step,
        several_terms_go_in_one_write,
    )
}
