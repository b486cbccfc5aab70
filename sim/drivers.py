"""The quorum's real drivers and stores in simulation: crashes at any step, and oracles that look at the disks.

When a message leaves, a power cut is imagined at that very moment: everything that was not synced is lost. The store is
opened from what is left, and what the message says must be in it. The same holds when a client is told that its
records are committed: a majority must have them whatever happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from penstock.consensus.quorum.driver import Quorum
from penstock.consensus.quorum.store import QuorumStore
from penstock.consensus.quorum.wire import PackedMessage, unpack
from penstock.consensus.raft.leading import RaftTiming
from penstock.consensus.raft.messages import AppendEntries, InstallSnapshot, Member, Members, RaftMessage
from penstock.consensus.records import MetadataRecord, ProducerIdsReserved
from penstock.errors import ControllerUnavailable, InvalidRequest, NotController
from penstock.network.port import Method, Peers
from penstock.testing.clock import SimulatedClock
from penstock.testing.files import Crash, MemoryFiles
from penstock.testing.loop import Life, SimulatedLoop, detached
from sim.disk import Disk
from sim.network import Network, Weather
from sim.oracles import Oracles, Violation
from sim.quorum import tell
from sim.trace import Trace

DIRECTORY: Final = Path("/data/metadata")
_RESTART_MS: Final = 300
_ANSWER_S: Final = 3.0


class _LoopEvents:
    """Virtual time of a loop, for the network."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def plan(self, delay_ms: int, event: Callable[[], None]) -> None:
        self._loop.call_later(delay_ms / 1000, event, context=detached())


class _WatchedPeers:
    """The other nodes, as far as a quorum needs them."""

    def __init__(self, node: DriverNode) -> None:
        self._node = node
        self.handler: Callable[[int, Any, memoryview], Any] | None = None
        self.listeners: list[Callable[[int], None]] = []

    def on_lost(self, listener: Callable[[int], None]) -> None:
        self.listeners.append(listener)

    def serve(self, method: Method[Any, Any], handler: Callable[[int, Any, memoryview], Any]) -> None:
        del method
        self.handler = handler

    def tell(self, node_id: int, method: Method[Any, Any], request: PackedMessage, body: Sequence[bytes] = ()) -> None:
        del method, body
        self._node.drivers.carry(self._node, node_id, request)


class DriverNode:
    """A process with a disk that takes part in the quorum."""

    def __init__(self, drivers: Drivers, node_id: int) -> None:
        self.drivers = drivers
        self.id = node_id
        self.member = Member(node_id, f"disk-{node_id}")
        self.files = MemoryFiles(seed=drivers.random.getrandbits(32))
        self.quorum: Quorum | None = None
        self.lives = 0
        self._life = Life(f"node {node_id}")
        self._peers = _WatchedPeers(self)
        self._seen: tuple[int, Disk] | None = None

    def __repr__(self) -> str:
        return f"node {self.id}"

    @property
    def is_leader(self) -> bool:
        return self.quorum is not None and self.quorum.is_leader

    def start(self) -> None:
        if self.quorum is not None:
            return
        self.lives += 1
        self._life = Life(f"node {self.id}, life {self.lives}")
        self._life.run(self._start)

    def _start(self) -> None:
        drivers = self.drivers
        clock = SimulatedClock(drivers.loop)
        try:
            store = QuorumStore.open(self.files, DIRECTORY, self.member, clock)
            if not store.is_formed:
                store.form(drivers.members)
        except Crash:
            return  # `die` was told
        self._peers = peers = _WatchedPeers(self)
        random = Random(drivers.random.random())
        # A quorum serves, tells, and hears of lost connections; it asks nothing else of the port.
        self.quorum = Quorum(
            store, _as_peers(peers), clock, random, drivers.pace, snapshot_every=drivers.snapshot_every
        )
        self.quorum.listen(self._on_applied, lambda: None, lambda _: None)
        self.quorum.start()
        drivers.note(f"{self} starts in term {store.hard_state.term} with {store.last_index} entries")

    def _on_applied(self, index: int, records: Iterable[MetadataRecord]) -> None:
        self.drivers.check_applied(self, index, tuple(records))

    def receive(self, sender: int, request: PackedMessage) -> None:
        if self.quorum is not None and not self._life.is_over and self._peers.handler is not None:
            self.drivers.note(f"{self} gets {tell(unpack(request))}")
            self._life.run(self._peers.handler, sender, request, memoryview(b""))

    def lose(self, node_id: int) -> None:
        """The connection to another node broke."""
        if self.quorum is not None and not self._life.is_over:
            for listener in self._peers.listeners:
                self._life.run(listener, node_id)

    def crash_within(self, steps: int) -> None:
        """Lose power at a later step of the disk."""
        self.files.crash_at = self.files.steps + steps
        self.files.on_crash = partial(self._on_crash, self._life)

    def _on_crash(self, life: Life) -> None:
        if not life.is_over:
            self.die(is_power_cut=True)
            self.drivers.plan(_RESTART_MS, self.start)

    def die(self, *, is_power_cut: bool) -> None:
        """The process ends at once; what was not synced is lost in part if the power went."""
        if self._life.is_over:
            return
        self._life.end()
        self.drivers.loop.keep(self.quorum)
        self.quorum = None
        self.drivers.note(f"{self} dies at step {self.files.steps}: {self.files.last_step}")
        self.files = self.files.successor(keeps_unsynced=not is_power_cut)
        self._seen = None
        for other in self.drivers.nodes.values():
            if other is not self and self.drivers.random.random() < 0.5:
                self.drivers.plan(self.drivers.random.randrange(20), partial(other.lose, self.id))

    def disk(self) -> Disk:
        """What the worst power cut would leave at this moment."""
        if self._seen is None or self._seen[0] != self.files.steps:
            copy = _durable(self.files)
            store = QuorumStore.open(copy, DIRECTORY, self.member, SimulatedClock(self.drivers.loop))
            disk = Disk(self.member.directory_id, self.drivers.members)
            disk.hard_state, disk.snapshot, disk.entries = store.hard_state, store.snapshot, store.entries
            self._seen = self.files.steps, disk
        return self._seen[1]


def _as_peers(peers: Any) -> Peers:
    found: Peers = peers
    return found


def _durable(files: MemoryFiles) -> MemoryFiles:
    copy = MemoryFiles()
    for path, inode in files._durable.items():
        copy.make_directory(path.parent)
        copy.open(path, create=True).write(inode.durable)
        copy._live[path].sync()
    copy._durable = dict(copy._live)
    copy._unsynced.clear()
    return copy


class Drivers:
    """Nodes, a network between them, clients, and the oracles."""

    def __init__(self, loop: SimulatedLoop, seed: int, nodes: int, *, is_kept: bool = False) -> None:
        self.loop = loop
        self.random = Random(f"drivers {seed}")
        self.trace = Trace(is_kept=is_kept)
        self.oracles = Oracles()
        self.network = Network(_LoopEvents(loop), self.random, Weather())
        self.pace = RaftTiming(
            election_ms=200, heartbeat_ms=40, entries_at_once=self.random.choice((2, 512)), piece_bytes=64
        )
        self.snapshot_every = self.random.choice((5, 20, 1_000))
        self.members = Members({node_id: f"disk-{node_id}" for node_id in range(1, nodes + 1)})
        self.nodes = {node_id: DriverNode(self, node_id) for node_id in range(1, nodes + 1)}
        self.history: dict[int, tuple[MetadataRecord, ...]] = {}
        self.acked: dict[int, MetadataRecord] = {}
        self.proposed = 0
        self.operations = 0

    @property
    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def note(self, text: str) -> None:
        self.trace.note(self.now_ms, text)

    def plan(self, delay_ms: int, event: Callable[[], None]) -> None:
        self.loop.call_later(delay_ms / 1000, event, context=detached())

    def carry(self, sender: DriverNode, to: int, request: PackedMessage) -> None:
        message = unpack(request)
        self._check_message(sender, message)
        receiver = self.nodes.get(to)
        if receiver is not None:
            self.network.send(sender.id, to, partial(receiver.receive, sender.id, request))

    # -- oracles ------------------------------------------------------------------------------------------------------

    def _check_message(self, sender: DriverNode, message: RaftMessage) -> None:
        receiver = self.nodes[message.to].quorum if message.to in self.nodes else None
        try:
            self.oracles.check_message(message, sender.disk(), None if receiver is None else receiver._raft)
            if isinstance(message, (AppendEntries, InstallSnapshot)):
                leader = self.oracles.leaders.setdefault(message.term, sender.id)
                if leader != sender.id:
                    raise Violation(f"one leader a term: {leader} and {sender.id} lead term {message.term}")
        except Violation as violation:
            self.loop.failures.append((None, "", violation))

    def check_applied(self, node: DriverNode, index: int, records: tuple[MetadataRecord, ...]) -> None:
        known = self.history.setdefault(index, records)
        if known != records:
            self.loop.failures.append((None, "", Violation(f"same history: {node} has {records} at {index}: {known}")))
        self.oracles.committed_max = max(self.oracles.committed_max, index)

    def _check_acked(self, index: int) -> None:
        """Told to a client: whatever happens now, a majority has it."""
        stored = [node.id for node in self.nodes.values() if node.disk().last_index >= index]
        if len(stored) < self.members.majority:
            raise Violation(f"stored by a majority: {index} is acknowledged, but only {stored} have it")

    def raise_failures(self) -> None:
        """What went wrong where nobody waited for it."""
        for _, message, error in self.loop.failures:
            raise error if error is not None else AssertionError(message)

    # -- clients ------------------------------------------------------------------------------------------------------

    def leader(self) -> DriverNode | None:
        leading = [node for node in self.nodes.values() if node.is_leader]
        return self.random.choice(leading) if leading else None

    async def propose(self) -> bool:
        """Have a record committed by whoever believes to lead; whether it is known that it is."""
        node = self.leader()
        if node is None or node.quorum is None:
            return False
        self.proposed += 1
        record = ProducerIdsReserved(node_id=1, first_producer_id=0, next_producer_id=self.proposed)
        try:
            index = await asyncio.wait_for(node.quorum.propose([record]), _ANSWER_S)
        except (NotController, ControllerUnavailable, TimeoutError):
            return False
        self._check_acked(index)
        self.acked[index] = record
        self.operations += 1
        if self.history.get(index) != (record,):
            raise Violation(f"same history: {record} is acknowledged at {index}, where {self.history.get(index)} is")
        return True

    async def read(self) -> bool:
        node = self.leader()
        if node is None or node.quorum is None:
            return False
        before = max(self.acked, default=0)
        try:
            index = await asyncio.wait_for(node.quorum.read_index(), _ANSWER_S)
        except (NotController, ControllerUnavailable, TimeoutError):
            return False
        if index < before:
            raise Violation(f"fresh reads: read at {index}, but {before} was acknowledged when it was asked for")
        self.operations += 1
        return True

    async def transfer(self, node_id: int) -> None:
        node = self.leader()
        if node is not None and node.quorum is not None:
            try:
                await asyncio.wait_for(node.quorum.transfer(node_id), _ANSWER_S)
            except (NotController, ControllerUnavailable, InvalidRequest, TimeoutError):
                return

    async def recover(self) -> None:
        """All is calm: everybody has to find together again, with everything that was acknowledged."""
        self.network.calm()
        self.loop.thread_delay_max_s = 0.002
        for node in self.nodes.values():
            node.files.crash_at = node.files.capacity_bytes = None
            node.start()
        until = self.loop.time() + 15
        while not await self.propose():
            await asyncio.sleep(0.05)
            if self.loop.time() > until:
                raise Violation("recovery: nothing is committed though all is calm")
        last = max(self.acked)
        while any(node.quorum is None or node.quorum.applied_index < last for node in self.nodes.values()):
            await asyncio.sleep(0.05)
            if self.loop.time() > until:
                raise Violation("recovery: somebody does not catch up though all is calm")
        for index, record in self.acked.items():
            if self.history[index] != (record,):
                raise Violation(f"same history: {record} was acknowledged at {index}")
        states = [node.quorum.metadata.to_records() for node in self.nodes.values() if node.quorum is not None]
        if any(state != states[0] for state in states):
            raise Violation("recovery: the same entries came to different states")
        self.raise_failures()
