"""A Raft quorum in simulation: nodes with disks and drivers, a network, and oracles that watch all of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from penstock.consensus.raft.core import Effects, Raft
from penstock.consensus.raft.leading import RaftTiming
from penstock.consensus.raft.log import RaftLog
from penstock.consensus.raft.messages import (
    AppendEntries,
    AppendResponse,
    Entry,
    EntryKind,
    InstallSnapshot,
    Member,
    Members,
    RaftMessage,
    RequestVote,
    Snapshot,
    SnapshotResponse,
    VoteResponse,
)
from penstock.errors import InvalidRequest, NotController
from sim.disk import Disk
from sim.events import Events
from sim.network import Network, Weather
from sim.oracles import Oracles
from sim.trace import Trace

_TICK_MS = 20


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
        self._clock = (0, 0, 1.0)  # at this true time it showed this time, and it runs at this rate
        self._waiting: list[Effects] = []  # to be written
        self._is_writing = False
        self._is_pump_planned = False

    def __repr__(self) -> str:
        return f"node {self.id}"

    @property
    def member(self) -> Member:
        return Member(self.id, self.disk.directory_id)

    @property
    def now_ms(self) -> int:
        """What its own clock shows. No promise may hang on its running at the pace of another."""
        true_ms, shown_ms, rate = self._clock
        return shown_ms + int((self.quorum.events.now_ms - true_ms) * rate)

    def set_clock_rate(self, rate: float) -> None:
        self._clock = (self.quorum.events.now_ms, self.now_ms, rate)

    def start(self) -> None:
        self.lives += 1
        disk = self.disk
        log = RaftLog(disk.snapshot, disk.entries)
        self.raft = Raft(self.member, disk.hard_state, log, self.quorum.pace, Random(self.quorum.random.random()))
        self.applied = unpack(disk.snapshot.data)
        self.applied_index = disk.snapshot.index
        self._forget()
        self.quorum.note(f"{self} starts in term {disk.hard_state.term} with {disk.last_index} entries")
        self._plan_tick()

    def crash(self) -> None:
        """What was not synced is gone, and so is everything in memory."""
        self.raft = None
        self._forget()

    def _forget(self) -> None:
        self._waiting = []
        self._is_writing = False
        self._is_pump_planned = False

    def wipe(self, members: Members) -> None:
        """Come back with an empty disk, as another member."""
        self.crash()
        self.disk = Disk(f"disk-{self.id}-{self.lives}", members)

    def _plan_tick(self) -> None:
        self.quorum.events.plan(self.quorum.random.randrange(_TICK_MS), partial(self._tick, self.lives))

    def _tick(self, life: int) -> None:
        if self.raft is not None and self.lives == life:
            if not self.is_paused:
                self.tick()
            self.quorum.events.plan(_TICK_MS, partial(self._tick, life))

    def tick(self) -> None:
        self.act(lambda raft: raft.tick(self.now_ms))

    def receive(self, message: RaftMessage) -> None:
        if self.raft is None or self.is_paused:
            return
        self.quorum.note(f"{self} gets {tell(message)}")
        is_later = self.quorum.batches and self.quorum.random.random() < 0.5
        self.act(lambda raft: raft.receive(message, self.now_ms), is_pumped=not is_later)
        if is_later and not self._is_pump_planned:
            self._is_pump_planned = True
            self.quorum.events.plan(self.quorum.random.randrange(20), partial(self._pump_later, self.lives))

    def _pump_later(self, life: int) -> None:
        if self.raft is not None and self.lives == life:
            self._is_pump_planned = False
            self.pump()

    def act(self, act: Callable[[Raft], object], *, is_pumped: bool = True) -> None:
        """Tell the core something, and do what it wants done."""
        raft = self.raft
        assert raft is not None
        before = raft.commit_index
        act(raft)
        if raft.leading is not None and raft.commit_index > before:
            (last,) = raft.log.up_to(raft.commit_index, raft.commit_index)
            self.quorum.check_committed(raft, last)
        self.quorum.oracles.check_node(self)
        if is_pumped:
            self.pump()

    def pump(self) -> None:
        """Do what the core wants: one write at a time, promises behind it."""
        assert self.raft is not None
        effects = self.raft.take()
        for message in effects.messages:
            self.quorum.carry(message)
        self.quorum.oracles.on_reads(effects)
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
            self.quorum.oracles.check_written(self.disk, effects.entries)
        self.quorum.note(f"{self} has written up to {self.disk.last_index}, {self.disk.hard_state}")
        for effects in batch:
            for message in effects.promises:
                self.quorum.carry(message)
            if effects.entries:
                last = effects.entries[-1]
                self.act(partial(Raft.on_durable, index=last.index, term=last.term), is_pumped=False)
        self._is_writing = False
        if self._waiting:
            self._write_next()
        self.pump()
        if self.raft is not None and not self._waiting and not self._is_writing:
            self.quorum.oracles.check_stored(self.raft, self.disk)

    def _apply(self, effects: Effects) -> None:
        installed = effects.installed
        if installed is not None and installed.index > self.applied_index:
            self.applied, self.applied_index = unpack(installed.data), installed.index
            self.quorum.oracles.check_installed(installed, self.applied)
        for entry in effects.committed:
            if entry.index <= self.applied_index:
                continue
            assert entry.index == self.applied_index + 1, "an entry was left out"
            self.quorum.oracles.check_applied(entry)
            self.applied_index = entry.index
            if entry.kind is EntryKind.COMMAND:
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
        snapshot = Snapshot(index, term, members, pack(self.applied))
        self.disk.compact(snapshot)
        raft.compact(snapshot)


class Quorum:
    """Nodes, a network, and the oracles."""

    def __init__(self, seed: int, nodes: int, *, voters: int | None = None, is_kept: bool = False) -> None:
        self.random = Random(seed)
        self.events = Events()
        self.trace = Trace(is_kept=is_kept)
        self.oracles = Oracles()
        self.network = Network(self.events, self.random, Weather())
        self.pace = RaftTiming(
            entries_at_once=self.random.choice((2, 512)), piece_bytes=self.random.choice((64, 1 << 18))
        )
        self.disk_delay_max_ms = 5
        self.batches = False  # whether drivers gather what several messages lead to
        self.first_members = Members({node_id: f"disk-{node_id}" for node_id in range(1, (voters or nodes) + 1)})
        self.nodes = {node_id: self.make_node(node_id) for node_id in range(1, nodes + 1)}
        for node in self.nodes.values():
            node.start()

    def make_node(self, node_id: int) -> Node:
        return Node(self, node_id, self.first_members)

    def note(self, text: str) -> None:
        self.trace.note(self.events.now_ms, text)

    def check_committed(self, leader: Raft, last: Entry) -> None:
        self.oracles.check_committed(leader, last, {node.id: node.disk for node in self.nodes.values()})

    def watch(self, message: RaftMessage) -> None:
        """A message leaves."""
        receiver = self.nodes.get(message.to)
        self.oracles.check_message(
            message, self.nodes[message.sender.node_id].disk, None if receiver is None else receiver.raft
        )

    def carry(self, message: RaftMessage) -> None:
        self.watch(message)
        receiver = self.nodes.get(message.to)
        if receiver is not None:
            self.network.send(message.sender.node_id, message.to, partial(receiver.receive, message))

    def run(self, duration_ms: int) -> None:
        self.events.run_until(self.events.now_ms + duration_ms)

    def leader(self) -> Node | None:
        """Who leads in the latest term."""
        leading = [node for node in self.nodes.values() if node.raft is not None and node.raft.is_leader]
        return max(leading, key=lambda node: node.raft.term if node.raft else 0, default=None)

    def try_on_leader(self, act: Callable[[Raft], object]) -> bool:
        """Ask one who believes to lead for something; False if there is none or it refuses."""
        leading = [node for node in self.nodes.values() if node.raft is not None and node.raft.is_leader]
        node = self.random.choice(leading) if leading else None
        return node is not None and not node.is_paused and self.try_on(node, act)

    def try_on(self, node: Node, act: Callable[[Raft], object]) -> bool:
        try:
            node.act(act)
        except (NotController, InvalidRequest):
            return False
        return True

    def read(self, token: int) -> bool:
        self.oracles.on_read_asked(token)
        return self.try_on_leader(partial(Raft.read, token=token))


def tell(message: RaftMessage) -> str:
    """A message in a line."""
    about = ""
    match message:
        case RequestVote():
            about = f"{message.last_index}/{message.last_term} {message.is_trial:d}{message.is_handed_over:d}"
        case VoteResponse():
            about = f"{message.is_granted:d} {message.is_trial:d}"
        case AppendEntries():
            about = f"{message.previous_index}+{len(message.entries)} commit {message.commit} round {message.round}"
        case AppendResponse():
            about = f"{message.is_accepted:d} {message.index} round {message.round}"
        case InstallSnapshot():
            about = f"{message.snapshot.index} at {message.position} of {message.size}"
        case SnapshotResponse():
            about = f"{message.index} at {message.position}"
    return f"{type(message).__name__} from {message.sender.node_id} in term {message.term} {about}"


def pack(commands: list[bytes]) -> bytes:
    """Commands as a snapshot, the last first: the beginning of one snapshot never is that of another."""
    return b"".join(len(command).to_bytes(4, "big") + command for command in reversed(commands))


def unpack(data: bytes) -> list[bytes]:
    commands = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        if size:  # nothing is filler
            commands.append(data[position + 4 : position + 4 + size])
        position += 4 + size
    return commands[::-1]
