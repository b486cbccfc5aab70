"""A few nodes with replicas and nothing else, on virtual time: real logs, real replication, real rules of control.

The quorum is played by a list: what is decided is applied on every node that is up. Nodes are killed, lose their power,
are wiped and come back; links are cut; answers of the controller get lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from uuid import UUID

from tests.support.peers import PeerExchange

from penstock.config.settings import ClusterSettings, Fsync, ScrubSettings, StorageSettings
from penstock.consensus.commands import Admitted, Answer, Command, CreateTopic, RegisterNode
from penstock.consensus.controller import MetadataDraft, Rules, decide
from penstock.consensus.controller.nodes import fence, unfence
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import MetadataRecord, PartitionAssigned
from penstock.consensus.topic_config import TopicSettings
from penstock.errors import ControllerUnavailable, PenstockError
from penstock.partitions.config import PartitionsConfig
from penstock.partitions.metadata_applier import MetadataApplier
from penstock.partitions.partition import Partition
from penstock.partitions.replicas import Replicas
from penstock.partitions.replication.replication import Replication
from penstock.partitions.scrub import Scrub
from penstock.partitions.stats import BrokerStats
from penstock.records import Record, decode_records, encode_batch, iter_batches
from penstock.storage.data_directory import DataDirectory
from penstock.supervision import Supervision
from penstock.testing.clock import SimulatedClock
from penstock.testing.disk import SimulatedCommit, Spindle
from penstock.testing.files import MemoryFiles
from penstock.testing.loop import Life, SimulatedLoop, simulated_loop

TOPIC = "t"
TOPIC_ID = UUID(int=7)
DATA = Path("/data")


class Node:
    """One node's life, and the disk it leaves to the next."""

    def __init__(self, stage: Stage, node_id: int) -> None:
        self.stage = stage
        self.id = node_id
        self.files = MemoryFiles(seed=stage.random.getrandbits(32))
        self.disk = 0
        self.spindle = Spindle()
        self.life: Life | None = None
        self.has_controller = True
        self.loses_answers = False
        self.applied = 0

    @property
    def is_up(self) -> bool:
        return self.life is not None

    def open(self) -> None:
        """Begin a life."""
        self.life = Life(f"node {self.id}")
        self.life.run(self._open)

    def _open(self) -> None:
        stage = self.stage
        self.metadata = ClusterMetadata()
        self.applied = 0
        self.stats = BrokerStats()
        config = replace(stage.config, storage=StorageSettings(fsync=stage.fsync))
        self.peers = stage.exchange.join(self.id)
        life, serve = self.life, self.peers.serve
        # What comes from another node is done by this one, and goes on when the other dies.
        self.peers.serve = lambda method, handler: serve(method, partial(life.run, handler))  # type: ignore[method-assign,union-attr]
        random = Random(stage.random.getrandbits(32))
        spindle = self.spindle

        def open_commit(on_synced: Callable[..., None], **_: int) -> SimulatedCommit:
            return SimulatedCommit(on_synced, random, spindle)

        self.replicas = Replicas(
            self.files,
            DataDirectory(self.files, DATA, self.id),
            config,
            self.metadata,
            self.stats,
            open_commit,  # type: ignore[arg-type]
            stage.clock,
        )
        self.supervision = supervision = Supervision(stage.clock)
        self.replication = Replication(
            self.id,
            self.replicas,
            self.peers,
            self,
            stage.clock,
            config,
            self.stats.replication,
            supervision,
        )
        self.in_step = MetadataApplier(self.metadata, self.replicas, self.peers, supervision)
        self.replicas.attach(stage.loop)
        self.in_step.start()
        self.replication.start()
        self.scrub = Scrub(self.replicas, stage.scrub, stage.clock, self.stats.scrub)
        self.scrubbing = asyncio.ensure_future(self.scrub.run())
        self.catch_up()

    def catch_up(self) -> None:
        """Apply what was decided."""
        while self.applied < len(self.stage.decided):
            records = self.stage.decided[self.applied]
            self.applied += 1
            for record in records:
                self.metadata.apply(record)
            self.in_step.on_applied(self.applied, records)

    async def submit(self, command: Command, *, timeout_s: float = 15.0) -> Answer:
        """As a way to the controller."""
        await asyncio.sleep(0.002)
        if not self.has_controller:
            raise ControllerUnavailable("no controller")
        answer = self.stage.decide(command)
        if self.loses_answers:
            raise ControllerUnavailable("the answer is lost")
        await asyncio.sleep(0.002)
        return answer

    def end(self, *, keeps_unsynced: bool = True) -> None:
        """Kill the process, or cut its power."""
        assert self.life is not None
        self.life.end()
        self.life = None
        self.stage.loop.keep((self.replicas, self.replication, self.in_step, self.peers))
        for task in asyncio.all_tasks(self.stage.loop):
            self.stage.loop.keep(task)
        self.stage.exchange.leave(self.peers)
        self.files = self.files.successor(keeps_unsynced=keeps_unsynced)

    def wipe(self) -> None:
        self.files = MemoryFiles(seed=self.stage.random.getrandbits(32))
        self.disk += 1

    def partition(self, index: int = 0, topic: str = TOPIC) -> Partition:
        return self.replicas.get(topic, index)


CONFIG = PartitionsConfig(
    topic_defaults=TopicSettings(min_insync_replicas=0), cluster=ClusterSettings(replica_lag_ms=2_000)
)


class Stage:
    """The nodes, the network between them, and what was decided."""

    def __init__(self, loop: SimulatedLoop, nodes: int = 3, *, seed: int = 0, fsync: Fsync = Fsync.EVERY) -> None:
        self.loop = loop
        self.random = Random(seed)
        self.clock = SimulatedClock(loop)
        self.fsync = fsync
        self.config = CONFIG
        self.scrub = ScrubSettings()
        self.exchange = PeerExchange()
        self.metadata = ClusterMetadata()
        self.decided: list[list[MetadataRecord]] = []
        self.nodes = {node_id: Node(self, node_id) for node_id in range(1, nodes + 1)}
        self.acked: dict[int, list[bytes]] = {}  # values that were acknowledged, by partition
        self.failed: list[PenstockError] = []

    # -- deciding -----------------------------------------------------------------------------------------------------

    def decide(self, command: Command) -> Answer:
        decision = decide(self.metadata, command, rules=Rules())
        self.commit(decision.records)
        return decision.answer

    def draft(self, change: Callable[[MetadataDraft], None]) -> None:
        draft = MetadataDraft(self.metadata, Rules())
        change(draft)
        self.commit(draft.records())

    def commit(self, records: list[MetadataRecord]) -> None:
        for record in records:
            self.metadata.apply(record)
        self.decided.append(records)
        for node in self.nodes.values():
            if node.is_up and node.has_controller:
                assert node.life is not None
                self.loop.call_soon(partial(node.life.run, node.catch_up))

    def assigned(self, index: int = 0, topic: str = TOPIC) -> PartitionAssigned:
        return self.metadata.partition(topic, index)

    # -- nodes --------------------------------------------------------------------------------------------------------

    async def start(self, *node_ids: int) -> None:
        """Bring nodes up, and have them registered and let in."""
        for node_id in node_ids or self.nodes:
            self.nodes[node_id].open()
        for node_id in node_ids or self.nodes:
            await self.admit(node_id)
        await self.settle()

    async def admit(self, node_id: int) -> None:
        node = self.nodes[node_id]
        await self.settle()
        command = RegisterNode(
            node_id=node_id,
            directory_id=f"disk {node.disk} of {node_id}",
            endpoints=(),
            rack=None,
            has_lost_writes=False,
            doubtful=node.replicas.doubtful,
        )
        admitted = self.decide(command)
        assert isinstance(admitted, Admitted)
        node.replicas.on_reported(command.doubtful)
        self.draft(lambda draft: unfence(draft, node_id))
        await self.settle()
        node.replicas.node_epoch = admitted.epoch
        assert node.life is not None
        node.life.run(node.in_step.apply_all)

    def fence(self, *node_ids: int) -> None:
        self.draft(lambda draft: fence(draft, node_ids))

    async def settle(self) -> None:
        """Let everything that is decided take effect."""
        await asyncio.sleep(0.01)
        for node in self.nodes.values():
            if node.is_up:
                await node.in_step.caught_up()

    async def create(self, partitions: int = 1, factor: int = 3, topic: str = TOPIC, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        topic_id = TOPIC_ID if topic == TOPIC else UUID(int=self.random.getrandbits(128))
        self.decide(
            CreateTopic(name=topic, topic_id=topic_id, partitions=partitions, replication_factor=factor, configs=named)
        )
        await self.settle()

    def leader(self, index: int = 0) -> Node:
        return self.nodes[self.assigned(index).leader]

    def followers(self, index: int = 0) -> list[Node]:
        assigned = self.assigned(index)
        return [self.nodes[node_id] for node_id in assigned.replicas if node_id != assigned.leader]

    # -- writing and reading ------------------------------------------------------------------------------------------

    def write(self, value: bytes, index: int = 0, node: Node | None = None, *, is_all: bool = True) -> None:
        """Write as a producer does; what is acknowledged is remembered."""
        life = (node or self.leader(index)).life
        assert life is not None
        life.run(partial(self._write, value, index, node or self.leader(index), is_all=is_all))

    def _write(self, value: bytes, index: int, node: Node, *, is_all: bool) -> None:
        partition = node.partition(index)
        if is_all:
            partition.check_in_sync()
        batch = encode_batch([Record(0, self.clock.now_ms(), b"k" + value, value)])
        syncs = is_all and self.fsync is Fsync.EVERY
        placed = partition.append(memoryview(batch), self.clock.now_ms(), is_durable=syncs)
        if is_all:
            partition.when_committed(placed.next_offset, partial(self._on_written, index, value))

    def _on_written(self, index: int, value: bytes, error: PenstockError | None) -> None:
        if error is None:
            self.acked.setdefault(index, []).append(value)
        else:
            self.failed.append(error)

    async def until(self, condition: Callable[[], bool], patience_s: float = 30.0) -> None:
        deadline = self.loop.time() + patience_s
        while not condition():
            assert self.loop.time() < deadline, "it never came true"
            await asyncio.sleep(0.01)

    async def in_sync(self, count: int, index: int = 0) -> None:
        await self.until(lambda: len(self.assigned(index).in_sync) == count)
        await self.settle()

    def check_acked(self, index: int = 0) -> None:
        """Everything that was acknowledged is there, once, for readers of whoever leads."""
        found = values_of(self.leader(index).partition(index), is_committed=True)
        assert len(set(found)) == len(found)
        assert set(self.acked.get(index, [])) <= set(found)

    def check_agreement(self, index: int = 0) -> None:
        """All replicas have the same below what each of them knows to be committed."""
        parts = [
            node.partition(index) for node in self.nodes.values() if node.is_up and node.replicas.has(TOPIC, index)
        ]
        for one in parts:
            for other in parts:
                limit = min(one.high_watermark, other.high_watermark)
                start = max(one.log.start_offset, other.log.start_offset)
                assert bytes_of(one, start, limit) == bytes_of(other, start, limit)


def bytes_of(partition: Partition, start: int, limit: int) -> bytes:
    found = [bytes(each.read()) for each in partition.log.batches(start)]
    return b"".join(data for data in found if next(iter(iter_batches(data)))[1].next_offset <= limit)


def values_of(partition: Partition, *, is_committed: bool = False) -> list[bytes]:
    limit = partition.high_watermark if is_committed else partition.log.end_offset
    return [
        record.value or b""
        for each in partition.log.batches(partition.log.start_offset)
        for record in decode_records(each.read())
        if record.offset < limit
    ]


Story = Callable[[Stage], Awaitable[None]]


def tell(story: Story, nodes: int = 3, *, seed: int = 0, fsync: Fsync = Fsync.EVERY, **config: int) -> None:
    """Run a story on virtual time. Nothing that any node does by itself may fail."""
    with simulated_loop(Random(seed)) as loop:
        stage = Stage(loop, nodes, seed=seed, fsync=fsync)
        if config:
            stage.config = replace(CONFIG, cluster=replace(CONFIG.cluster, **config))
        loop.run_until_complete(story(stage))
        assert not loop.failures, loop.failures
