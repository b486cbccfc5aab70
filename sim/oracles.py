"""Oracles: what must hold in every history of a quorum, looked at in every message, write and applied entry.

By name:

- *one leader a term*: nobody else ever leads it;
- *kept promises*: what a message says of its sender's disk is there when it leaves: votes, candidacies,
  acknowledgements, the term of a leader;
- *same history*: whatever anybody applied at an index, everybody applies there, for ever;
- *memory as disk*: when all is written, the log on disk is the log that the core goes by;
- *same entries*: two logs that have an entry of the same index and term have the same entry, and terms never go down;
- *complete leaders*: a new leader has every entry that was committed before;
- *stored by a majority*: what a leader commits is on the disks of a majority, and its last entry is of its own term;
- *true answers*: a follower's log is its leader's, as far as it says so;
- *true snapshots*: a snapshot is the state that the entries before it come to;
- *members as written*: every member goes by the last members in its log;
- *fresh reads*: a confirmed read is not behind what was committed when it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from penstock.consensus.raft.core import Effects, Raft
from penstock.consensus.raft.messages import (
    AppendEntries,
    AppendResponse,
    Entry,
    EntryKind,
    InstallSnapshot,
    RaftMessage,
    RequestVote,
    Snapshot,
    SnapshotResponse,
    VoteResponse,
)
from sim.disk import Disk


class Violation(AssertionError):
    """An oracle was proved wrong."""


class Watched(Protocol):
    """A node as the oracles see it."""

    id: int
    disk: Disk
    raft: Raft | None


class Oracles:
    """They know everything that was ever committed, and see all disks at once."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.history: dict[int, Entry] = {}
        self.committed_max = 0
        self.reads_confirmed = 0
        self.reads_failed = 0
        self._entries: dict[tuple[int, int], Entry] = {}
        self._reads: dict[int, int] = {}

    # -- always -------------------------------------------------------------------------------------------------------

    def check_node(self, node: Watched) -> None:
        raft = node.raft
        if raft is None:
            return
        if raft.members != raft.log.members():
            raise Violation(f"members as written: {raft} goes by {raft.members}")
        if raft.commit_index < raft.log.snapshot.index:
            raise Violation(f"true snapshots: {raft} has one of {raft.log.snapshot.index}")
        if not raft.is_leader:
            return
        known = self.leaders.get(raft.term)
        if known is None:
            self.leaders[raft.term] = node.id
            self._check_complete(raft)
        elif known != node.id:
            raise Violation(f"one leader a term: {known} and {node.id} lead term {raft.term}")

    def _check_complete(self, raft: Raft) -> None:
        for index, entry in self.history.items():
            if index >= raft.log.first_index and entry.term < raft.term and raft.log.term_at(index) != entry.term:
                raise Violation(f"complete leaders: {raft} lacks committed entry {index} of term {entry.term}")

    # -- entries ------------------------------------------------------------------------------------------------------

    def check_applied(self, entry: Entry) -> None:
        known = self.history.setdefault(entry.index, entry)
        if known is not entry and known != entry:
            raise Violation(f"same history: index {entry.index} is {known} and {entry}")
        self.committed_max = max(self.committed_max, entry.index)

    def check_written(self, disk: Disk, entries: Iterable[Entry]) -> None:
        for entry in entries:
            known = self._entries.setdefault((entry.index, entry.term), entry)
            if known is not entry and known != entry:
                raise Violation(f"same entries: {entry} on {disk.directory_id}, and {known} elsewhere")
            before = disk.term_at(entry.index - 1)
            if before is not None and before > entry.term:
                raise Violation(f"same entries: {entry} on {disk.directory_id} follows one of term {before}")

    def check_stored(self, raft: Raft, disk: Disk) -> None:
        """Nothing waits to be written."""
        ends = (raft.log.first_index, raft.log.last_index, raft.log.last_term)
        if ends != (disk.snapshot.index + 1, disk.last_index, disk.term_at(disk.last_index)):
            raise Violation(f"memory as disk: {raft} has {ends}, but its disk ends at {disk.last_index}")
        if raft.members != disk.members():
            raise Violation(f"members as written: {raft} goes by {raft.members}, its disk has {disk.members()}")

    def check_committed(self, leader: Raft, entry: Entry, disks: Mapping[int, Disk]) -> None:
        if entry.term != leader.term:
            raise Violation(f"stored by a majority: {leader} committed {entry} by counting")
        stored = [
            node_id
            for node_id, directory_id in leader.members.voters.items()
            if disks[node_id].directory_id == directory_id and disks[node_id].has(entry)
        ]
        if len(stored) < leader.members.majority:
            raise Violation(f"stored by a majority: {leader} committed {entry}, which only {stored} have")

    def check_installed(self, snapshot: Snapshot, commands: list[bytes]) -> None:
        entries = [self.history.get(index) for index in range(1, snapshot.index + 1)]
        if commands != [entry.data for entry in entries if entry is not None and entry.kind is EntryKind.COMMAND]:
            raise Violation(f"true snapshots: the one of index {snapshot.index} is not what was applied")

    # -- messages -----------------------------------------------------------------------------------------------------

    def check_message(self, message: RaftMessage, disk: Disk, receiver: Raft | None) -> None:
        match message:
            case VoteResponse(is_granted=True, is_trial=False):
                self._check_vote(message, message.to, disk)
            case RequestVote(is_trial=False):
                self._check_vote(message, message.sender.node_id, disk)
            case AppendEntries() | InstallSnapshot() if disk.hard_state.term < message.term:
                raise Violation(f"kept promises: {message} but the disk has {disk.hard_state}")
            case AppendResponse(is_accepted=True) if disk.hard_state.term == message.term:
                if message.index > disk.last_index:
                    raise Violation(f"kept promises: {message} but the disk ends at {disk.last_index}")
                self._check_answer(message, disk, receiver)
            case SnapshotResponse() if receiver is not None and receiver.leading is not None:
                follower = receiver.leading.followers.get(message.sender.node_id)
                sent = None if follower is None or receiver.term != message.term else follower.snapshot
                if sent is not None and sent.index == message.index and message.position >= len(sent.data) > 0:
                    self._check_taken(message, disk)

    @staticmethod
    def _check_vote(message: RaftMessage, node_id: int, disk: Disk) -> None:
        stored = disk.hard_state
        if stored.term < message.term or (stored.term == message.term and stored.voted_for != node_id):
            raise Violation(f"kept promises: {message} but the disk has {stored}")

    @staticmethod
    def _check_taken(message: SnapshotResponse, disk: Disk) -> None:
        if disk.last_index < message.index:
            raise Violation(f"kept promises: {message} but the disk ends at {disk.last_index}")

    @staticmethod
    def _check_answer(answer: AppendResponse, disk: Disk, leader: Raft | None) -> None:
        if leader is None or not leader.is_leader or leader.term != answer.term:
            return
        ours, theirs = leader.log.term_at(answer.index), disk.term_at(answer.index)
        if ours is not None and theirs is not None and ours != theirs:
            raise Violation(f"true answers: {answer}, but the entry is of term {theirs} there and {ours} here")

    # -- reads --------------------------------------------------------------------------------------------------------

    def on_read_asked(self, token: int) -> None:
        self._reads[token] = self.committed_max

    def on_reads(self, effects: Effects) -> None:
        for read in effects.reads:
            assert isinstance(read.token, int)
            before = self._reads.get(read.token, 0)
            if read.index < before:
                raise Violation(f"fresh reads: read at {read.index}, but {before} was committed when it was asked for")
            self.reads_confirmed += 1
        self.reads_failed += len(effects.failed_reads)
