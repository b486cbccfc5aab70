"""A Raft quorum in simulation, with oracles that look at every message, every disk and every applied entry.

The oracles, by name:

- *one leader a term*: nobody else ever leads it;
- *kept promises*: a vote or an acknowledgement leaves only when what it says is on the sender's disk;
- *same history*: whatever anybody applied at an index, everybody applies there, for ever;
- *complete leaders*: a new leader has every entry that was committed before;
- *stored by a majority*: what a leader commits is on the disks of a majority, and its last entry is of its own term;
- *true answers*: a follower's log is its leader's, as far as it says so;
- *members as written*: every member goes by the last members in its log;
- *fresh reads*: a confirmed read is not behind what was committed when it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from penstock.cluster.raft.core import Raft
from penstock.cluster.raft.effects import Effects
from penstock.cluster.raft.log import RaftLog
from penstock.cluster.raft.messages import (
    Appended,
    Entry,
    GiveVote,
    HardState,
    Kind,
    Member,
    Members,
    Message,
    Snapshot,
)
from penstock.cluster.raft.pace import Pace
from penstock.errors import InvalidRequest, NotController
from penstock.testing.simulation.events import Events
from penstock.testing.simulation.network import Network, Weather

_TICK_MS = 20


class Violation(AssertionError):
    """An oracle was proved wrong."""


class Disk:
    """What a member has written and synced."""

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


class Node:
    """A member with its disk and its driver."""

    def __init__(self, quorum: Quorum, node_id: int, members: Members) -> None:
        self.quorum = quorum
        self.id = node_id
        self.lives = 0
        self.disk = Disk(f"disk-{node_id}", members)
        self.raft: Raft | None = None
        self.applied: list[bytes] = []
        self.applied_index = 0
        self.is_paused = False
        self._waiting: list[Effects] = []  # to be written
        self._is_writing = False

    @property
    def member(self) -> Member:
        return Member(self.id, self.disk.directory_id)

    def start(self) -> None:
        self.lives += 1
        disk = self.disk
        log = RaftLog(disk.snapshot, disk.entries)
        self.raft = Raft(self.member, disk.hard_state, log, self.quorum.pace, Random(self.quorum.random.random()))
        self.applied = _unpack(disk.snapshot.data)
        self.applied_index = disk.snapshot.index
        self._waiting = []
        self._is_writing = False
        self.quorum.events.plan(self.quorum.random.randrange(_TICK_MS), partial(self._tick, self.lives))

    def crash(self) -> None:
        """What was not synced is gone, and so is everything in memory."""
        self.raft = None
        self._waiting = []
        self._is_writing = False

    def wipe(self, members: Members) -> None:
        """Come back with an empty disk, as another member."""
        self.crash()
        self.disk = Disk(f"disk-{self.id}-{self.lives}", members)

    def _tick(self, life: int) -> None:
        if self.raft is not None and self.lives == life:
            if not self.is_paused:
                self.raft.tick(self.quorum.events.now_ms)
                self.pump()
            self.quorum.events.plan(_TICK_MS, partial(self._tick, life))

    def receive(self, message: Message) -> None:
        if self.raft is not None and not self.is_paused:
            self.raft.receive(message, self.quorum.events.now_ms)
            self.pump()

    def pump(self) -> None:
        """Do what the core wants: one write at a time, promises behind it."""
        assert self.raft is not None
        effects = self.raft.take()
        for message in effects.messages:
            self.quorum.carry(message)
        self.quorum.on_reads(effects)
        if effects.committed and self.raft.leading is not None:
            self.quorum.check_committed(self.raft, effects.committed[-1])
        self._apply(effects)
        if effects.hard_state or effects.installed or effects.entries or effects.promises:
            self._waiting.append(effects)
            if not self._is_writing:
                self._write_next()

    def _write_next(self) -> None:
        """Write all that waits in one go, as a group commit does."""
        self._is_writing = True
        batch, self._waiting = self._waiting, []
        delay_ms = self.quorum.random.randrange(1, self.quorum.disk_delay_max_ms + 1)
        self.quorum.events.plan(delay_ms, partial(self._written, self.lives, batch))

    def _written(self, life: int, batch: list[Effects]) -> None:
        if self.raft is None or self.lives != life:
            return
        for effects in batch:
            self.disk.write(effects)
        for effects in batch:
            for message in effects.promises:
                self.quorum.carry(message)
            if effects.entries:
                self.raft.on_durable(effects.entries[-1].index, effects.entries[-1].term)
        self._is_writing = False
        if self._waiting:
            self._write_next()
        self.pump()

    def _apply(self, effects: Effects) -> None:
        if effects.installed is not None and effects.installed.index > self.applied_index:
            self.applied, self.applied_index = _unpack(effects.installed.data), effects.installed.index
        for entry in effects.committed:
            if entry.index <= self.applied_index:
                continue
            assert entry.index == self.applied_index + 1, "an entry was left out"
            self.quorum.check_applied(entry)
            self.applied_index = entry.index
            if entry.kind is Kind.COMMAND:
                self.applied.append(entry.data)

    def compact(self) -> None:
        raft = self.raft
        if raft is None or self.applied_index <= raft.log.snapshot.index:
            return
        index = min(self.applied_index, self.disk.last_index)
        term = raft.log.term_at(index)
        if index != self.applied_index or term is None or self.disk.term_at(index) != term:
            return  # the snapshot would stand for what is not on this disk yet
        members = next(
            (entry.members for entry in reversed(raft.log.up_to(raft.log.first_index, index)) if entry.members),
            raft.log.snapshot.members,
        )
        snapshot = Snapshot(index, term, members, _pack(self.applied))
        self.disk.compact(snapshot)
        raft.compact(snapshot)


class Quorum:
    """Nodes, a network, and the oracles."""

    def __init__(self, seed: int, nodes: int, *, voters: int | None = None) -> None:
        self.random = Random(seed)
        self.events = Events()
        self.network = Network(self.events, self.random, Weather())
        self.pace = Pace(entries_at_once=self.random.choice((2, 512)), piece_bytes=self.random.choice((64, 1 << 18)))
        self.disk_delay_max_ms = 5
        first = Members({node_id: f"disk-{node_id}" for node_id in range(1, (voters or nodes) + 1)})
        self.first_members = first
        self.nodes = {node_id: Node(self, node_id, first) for node_id in range(1, nodes + 1)}
        self.leaders: dict[int, int] = {}
        self.history: dict[int, Entry] = {}
        self.committed_max = 0
        self._reads: dict[int, int] = {}
        self.reads_confirmed = 0
        for node in self.nodes.values():
            node.start()

    def carry(self, message: Message) -> None:
        self.check_promise(message, self.nodes[message.sender.node_id].disk)
        receiver = self.nodes.get(message.to)
        if receiver is not None:
            self.network.send(message.sender.node_id, message.to, partial(receiver.receive, message))

    def run(self, duration_ms: int) -> None:
        self.events.run_until(self.events.now_ms + duration_ms, self.check)

    def leader(self) -> Node | None:
        """Who leads in the latest term."""
        leading = [node for node in self.nodes.values() if node.raft is not None and node.raft.is_leader]
        return max(leading, key=lambda node: node.raft.term if node.raft else 0, default=None)

    def try_on_leader(self, act: Callable[[Raft], object]) -> bool:
        """Ask one who believes to lead for something; False if there is none or it refuses."""
        leading = [node for node in self.nodes.values() if node.raft is not None and node.raft.is_leader]
        node = self.random.choice(leading) if leading else None
        if node is None or node.raft is None or node.is_paused:
            return False
        try:
            act(node.raft)
        except (NotController, InvalidRequest):
            return False
        node.pump()
        return True

    def read(self, token: int) -> bool:
        before = self.committed_max
        if self.try_on_leader(lambda raft: raft.read(token)):
            self._reads[token] = before
            return True
        return False

    # -- oracles ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for node in self.nodes.values():
            raft = node.raft
            if raft is not None and raft.members != raft.log.members():
                raise Violation(f"members as written: {raft} goes by {raft.members}")
            if raft is None or not raft.is_leader:
                continue
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

    def check_applied(self, entry: Entry) -> None:
        known = self.history.setdefault(entry.index, entry)
        if known != entry:
            raise Violation(f"same history: index {entry.index} is {known} and {entry}")
        self.committed_max = max(self.committed_max, entry.index)

    def check_promise(self, message: Message, disk: Disk) -> None:
        if isinstance(message, GiveVote) and message.is_granted and not message.is_trial:
            stored = disk.hard_state
            if stored.term < message.term or (stored.term == message.term and stored.voted_for != message.to):
                raise Violation(f"kept promises: {message} but the disk has {stored}")
        if isinstance(message, Appended) and message.is_accepted and disk.hard_state.term == message.term:
            if message.index > disk.last_index:
                raise Violation(f"kept promises: {message} but the disk ends at {disk.last_index}")
            self._check_answer(message, disk)

    def _check_answer(self, answer: Appended, disk: Disk) -> None:
        leader = self.nodes[answer.to].raft
        if leader is None or not leader.is_leader or leader.term != answer.term:
            return
        ours, theirs = leader.log.term_at(answer.index), disk.term_at(answer.index)
        if ours is not None and theirs is not None and ours != theirs:
            raise Violation(f"true answers: {answer}, but the entry is of term {theirs} there and {ours} here")

    def check_committed(self, leader: Raft, entry: Entry) -> None:
        if entry.term != leader.term:
            raise Violation(f"stored by a majority: {leader} committed {entry} by counting")
        stored = [
            node_id
            for node_id, directory_id in leader.members.voters.items()
            if self.nodes[node_id].disk.directory_id == directory_id
            and self._is_stored(self.nodes[node_id].disk, entry)
        ]
        if len(stored) < leader.members.majority:
            raise Violation(f"stored by a majority: {leader} committed {entry}, which only {stored} have")

    @staticmethod
    def _is_stored(disk: Disk, entry: Entry) -> bool:
        return disk.snapshot.index >= entry.index or disk.term_at(entry.index) == entry.term

    def on_reads(self, effects: Effects) -> None:
        for read in effects.reads:
            assert isinstance(read.token, int)
            before = self._reads.get(read.token)
            if before is not None and read.index < before:
                raise Violation(f"fresh reads: read at {read.index}, but {before} was committed when it was asked for")
            self.reads_confirmed += 1


def _pack(commands: list[bytes]) -> bytes:
    return b"".join(len(command).to_bytes(4, "big") + command for command in commands)


def _unpack(data: bytes) -> list[bytes]:
    commands = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        commands.append(data[position + 4 : position + 4 + size])
        position += 4 + size
    return commands
