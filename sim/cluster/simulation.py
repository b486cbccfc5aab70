"""A whole cluster in simulation: nodes, a network, clients, faults and oracles, all from one seed.

A history has three parts: the cluster forms, work goes on while faults come and go, and then all is calm and
everything has to come right again by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import Surroundings
from penstock.config.kinds import Address, PeerAddress
from penstock.config.settings import (
    ClusterSettings,
    GroupSettings,
    ScrubSettings,
    StorageSettings,
    TopicDefaults,
    TransactionSettings,
)
from penstock.consensus.commands import CreateTopic, DrainNode
from penstock.consensus.records import Endpoint
from penstock.consensus.topic_config import TopicSettings
from penstock.errors import PenstockError, TopicExists
from penstock.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.partitions.config import PartitionsConfig
from penstock.partitions.damage import is_damaged
from penstock.storage.config import LogConfig
from penstock.testing.disk import SimulatedCommit
from penstock.testing.loop import SimulatedLoop
from sim.cluster.clients import Client, OffsetCommitter, Producer, Reader
from sim.cluster.history import Place
from sim.cluster.ledger import Ledger
from sim.cluster.operations import ClusterFaults
from sim.cluster.oracles import Oracles
from sim.cluster.peers import SimulatedPeers
from sim.cluster.planning import Planning
from sim.cluster.queue_oracles import QueueOracles
from sim.cluster.queue_shape import RESULTS, QueueShape
from sim.cluster.schedule_shape import SETTINGS, ScheduleShape
from sim.cluster.transactors import TransactionalProducer
from sim.cluster.workers import Worker, declare
from sim.cluster.world import PORT, SimulatedNode, Unreachable, World, host_of

_FORMATION_MAX_S: Final = 15.0
_HEALING_MAX_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a simulated cluster looks like."""

    nodes: int
    places: tuple[Place, ...]
    replication_factor: int
    min_insync_replicas: int
    duration_s: float
    producers: int
    transactors: int
    committers: int
    assignment: tuple[tuple[int, ...], ...] | None = None
    replica_lag_ms: int = 10_000
    session_ms: int = 2_000
    offsets_partitions: int = 1
    transactions_partitions: int = 1
    groups: GroupSettings = field(default_factory=GroupSettings)
    topic_defaults: TopicSettings = field(default_factory=TopicSettings)
    scrub: ScrubSettings = field(default_factory=lambda: ScrubSettings(interval_ms=1_500))
    queue: QueueShape | None = None
    schedule: ScheduleShape | None = None

    @property
    def written(self) -> tuple[Place, ...]:
        """The partitions that clients write to."""
        return (*self.places, RESULTS) if self.queue is not None and self.queue.has_transactions else self.places

    @classmethod
    def drawn(cls, random: Random) -> Shape:
        nodes = random.choice((3, 3, 3, 3, 3, 5, 1))
        partitions = random.choice((1, 2, 3))
        return cls(
            nodes=nodes,
            places=tuple(("alpha", index) for index in range(partitions)),
            replication_factor=min(nodes, random.choice((3, 3, 3, 2))),
            min_insync_replicas=min(nodes, random.choice((2, 2, 2, 1))),
            duration_s=random.choice((6.0, 10.0)),
            producers=random.choice((1, 2)),
            transactors=random.choice((0, 1)),
            committers=random.choice((0, 1)),
            replica_lag_ms=random.choice((400, 1_500, 10_000)),
            topic_defaults=TopicSettings(log=LogConfig(segment_bytes=random.choice((2_000, 1 << 20)))),
        )


class BrokerNode(SimulatedNode[Broker]):
    """A node whose process is a broker."""

    def __init__(self, simulation: Simulation, node_id: int, cluster: ClusterSettings) -> None:
        super().__init__(simulation, node_id)
        self._simulation = simulation
        self._cluster = cluster
        self.durable: dict[Place, int] = {}  # up to where each replica was when the process died
        self.lost: dict[Place, None] = {}  # with the disk, and not copied again yet
        self._hit: tuple[Path, int, bytes] | None = None  # where a bit was flipped, and what is there since
        self.wiped: dict[Place, None] = {}  # lost with the disk, and still in sync as far as anybody knows

    @property
    def broker(self) -> Broker | None:
        return self.process

    async def begin(self, peers: SimulatedPeers) -> None:
        surroundings = Surroundings(
            files=self.disk.files,
            clock=self.clock,
            random=Random(self.random.getrandbits(64)),
            peers=peers,
            open_commit=self._open_commit,
        )
        broker = Broker(self._config(), surroundings)
        self.process = broker
        self._simulation.oracles.watch(self, broker)
        await broker.start()

    def _open_commit(self, on_synced: Callable[..., None], **_: object) -> Any:
        return SimulatedCommit(on_synced, self.random, self.disk.spindle)

    def _config(self) -> BrokerConfig:
        shape = self._simulation.shape
        return BrokerConfig(
            node_id=self.id,
            data_dir=Path(f"/{host_of(self.id)}"),
            endpoints=(Endpoint(door="internal", host=host_of(self.id), port=PORT),),
            partitions=PartitionsConfig(
                topic_defaults=shape.topic_defaults,
                storage=StorageSettings(scrub=shape.scrub),
                cluster=self._cluster,
            ),
            groups=replace(shape.groups, offsets_partitions=shape.offsets_partitions),
            schedules=replace(SETTINGS, partitions=self._simulation.planning.shards),
            transactions=TransactionSettings(state_partitions=shape.transactions_partitions),
            topics=TopicDefaults(partitions=1),
            auto_create_topics=False,
            cluster=self._cluster,
        )

    async def end(self, process: Broker) -> None:
        await process.leave()
        await process.close()

    def wipe(self) -> None:
        super().wipe()
        self._hit = None
        self.lose()
        self.durable = {place: end for place, end in self.durable.items() if place in self.wiped}

    def lose(self) -> None:
        """What is on the disk may lack anything from now on."""
        self.wiped = self._simulation.oracles.places_in_sync(self.id)
        self.lost = dict.fromkeys(self.durable)

    def damage(self) -> str:
        """The power goes, and a bit of a log flips. What was hit; nothing if there is nothing to hit."""
        self.cut_power()
        files = self.disk.files
        hit = [path for path in files.paths() if path.suffix == ".log" and "alpha" in path.parts and files.size(path)]
        if not hit:
            return ""
        path = self.random.choice(hit)
        position = self.random.randrange(files.size(path))
        files.flip_bit(path, position, self.random.randrange(8))
        self._hit = path, position, files.open(path).read(position, 1)
        self.lose()
        return f"{path} at {position}"

    @property
    def is_damaged(self) -> bool:
        """Whether the byte that was hit is still there, found or not."""
        if self._hit is None:
            return False
        path, position, byte = self._hit
        return self.disk.files.exists(path) and self.disk.files.open(path).read(position, 1) == byte

    def _die(self, *, keeps_unsynced: bool, is_silent: bool) -> None:
        if self.is_up and not keeps_unsynced:
            self._simulation.ledger.lose(self.id)
        super()._die(keeps_unsynced=keeps_unsynced, is_silent=is_silent)

    def last_look(self, process: Broker) -> None:
        for partition in process.replicas:
            self.durable[partition.id.topic, partition.id.partition] = partition.log.durable_offset


class Simulation(World):
    """One history of one cluster of brokers."""

    nodes: dict[int, BrokerNode]

    def __init__(self, seed: int, loop: SimulatedLoop, *, shape: Shape | None = None, is_told: bool = False) -> None:
        super().__init__(seed, loop, is_told=is_told)
        # Queues and schedules are drawn apart, so that a history without them is as it was before there were any.
        self.shape = shape or replace(
            Shape.drawn(self.random),
            queue=QueueShape.of_seed(seed),
            schedule=ScheduleShape.drawn(Random(f"schedules {seed}")),
        )
        self.oracles = Oracles(self)
        self.ledger = Ledger(self)
        self.planning = Planning(self)
        peers = tuple(
            PeerAddress(node_id, Address(host_of(node_id), PORT)) for node_id in range(1, self.shape.nodes + 1)
        )
        cluster = self._cluster(peers=peers)
        self.nodes = {peer.node_id: BrokerNode(self, peer.node_id, cluster) for peer in peers}
        self.faults = ClusterFaults(self, self.shape.places)
        self._readers: list[Reader] = []

    def _cluster(self, **found: Any) -> ClusterSettings:
        lag_ms, session_ms = self.shape.replica_lag_ms, self.shape.session_ms
        return ClusterSettings(**found, replica_lag_ms=lag_ms, session_timeout_ms=session_ms)

    # -- what happens -------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        for node in self.nodes.values():
            node.start()
        await self.until(self.not_ready, _FORMATION_MAX_S, "the nodes do not form a cluster")
        await self.bounded(self._set_up(), _FORMATION_MAX_S, "the first topics cannot be created")
        await self.play()
        await self.bounded(self._work_off(), _HEALING_MAX_S, "queues cannot be worked off")
        await self.until(self._open_transactions, _HEALING_MAX_S, "transactions do not end")
        await self.planning.finish()
        await self.until(self._not_healed, _HEALING_MAX_S, "replicas do not catch up")
        await self.bounded(self._read_everything(), _HEALING_MAX_S, "what was written cannot be read")
        await self._scrub()
        # Preferred leaders may be given back meanwhile; then nobody leads for a moment.
        await self.until(self._not_healed, _HEALING_MAX_S, "leaders are handed over for ever")
        self.check()
        self.oracles.check_metadata()
        self.oracles.check_logs()
        QueueOracles(self).check()
        self.planning.check()

    async def play(self) -> None:
        """Clients work while faults come and go; then all is calm, and they finish what they began."""
        clients = self._clients()
        working = [asyncio.ensure_future(client.run()) for client in clients]
        await self.bounded(self.faults.run(self.loop.time() + self.shape.duration_s), 600, "faults do not end")
        await self.bounded(self.faults.calm(), _HEALING_MAX_S, "nodes do not stop")
        await self.until(self._not_healed, _HEALING_MAX_S, "the cluster does not come right again")
        self.is_over = True
        await self.bounded(_all(working), _HEALING_MAX_S, "clients cannot finish what they began")
        producer = next(client for client in clients if isinstance(client, Producer))
        await self.bounded(producer.write_everywhere(), _HEALING_MAX_S, "a partition takes no writes")

    def check(self) -> None:
        self.oracles.check()

    async def _set_up(self) -> None:
        client = Client(self, "operator")
        for topic in dict.fromkeys(topic for topic, _ in self.shape.places):
            if self.shape.assignment:
                await self._create(client, topic, assignment=self.shape.assignment)
            else:
                partitions = sum(name == topic for name, _ in self.shape.places)
                await self._create(
                    client, topic, partitions=partitions, replication_factor=self.shape.replication_factor
                )
        if self.shape.committers:
            await self._ensure(client, OFFSETS_TOPIC)
        if self.shape.transactors or RESULTS in self.shape.written:
            await self._ensure(client, TRANSACTIONS_TOPIC)
        if self.shape.queue is not None:
            await self._set_up_queues(client, self.shape.queue)
        await self.planning.set_up(client)

    async def _ensure(self, client: Client, name: str) -> None:
        ensure = partial(client.ask_anybody, lambda broker: broker.topics.ensure_internal(name))
        await client.insist("creates a topic", ensure)

    async def _create(self, client: Client, name: str, **placed: Any) -> None:
        topic_id = UUID(int=self.random.getrandbits(128))
        command = CreateTopic(name=name, topic_id=topic_id, configs=self._configs(), **placed)
        await client.insist("creates a topic", partial(client.ask_anybody, partial(_create, command=command)))

    async def _set_up_queues(self, client: Client, queue: QueueShape) -> None:
        if RESULTS in self.shape.written:
            factor = self.shape.replication_factor
            await self._create(client, RESULTS[0], partitions=1, replication_factor=factor)
        for topic, group in self._groups(queue):
            begin = partial(declare, topic=topic, group=group, shape=queue)
            await client.insist("declares a group", partial(client.ask_anybody, begin))

    def _groups(self, queue: QueueShape) -> list[tuple[str, str]]:
        topics = dict.fromkeys(topic for topic, _ in self.shape.places)
        return [(topic, group) for topic in topics for group in queue.groups]

    def _workers(self) -> list[Worker]:
        queue = self.shape.queue
        if queue is None:
            return []
        return [
            Worker(self, f"{group}-{number}", topic, group, queue)
            for topic, group in self._groups(queue)
            for number in range(queue.workers)
        ]

    async def _undrain(self, node_id: int) -> None:
        command = DrainNode(node_id=node_id, is_draining=False, with_replicas=False)
        await Client(self, "operator").ask_anybody(lambda broker: broker.controller.submit(command))

    async def _work_off(self) -> None:
        queue = self.shape.queue
        if queue is not None:
            # A topic for dead letters may have to be made yet, with as many replicas as others have.
            for node_id in self.nodes:
                await Client(self, "operator").insist("uses a node again", partial(self._undrain, node_id))
            workers = [Worker(self, f"{group}-last", topic, group, queue) for topic, group in self._groups(queue)]
            await _all([asyncio.ensure_future(worker.work_off()) for worker in workers])

    def _configs(self) -> dict[str, str]:
        in_sync = min(self.shape.min_insync_replicas, self.shape.replication_factor)
        of_queues = {} if self.shape.queue is None else self.shape.queue.topic_settings
        return {"min.insync.replicas": str(in_sync), **of_queues}

    def _make_readers(self) -> None:
        written = list(self.shape.written)
        self._readers = [
            Reader(self, "reader", written, is_committed_only=False),
            Reader(self, "careful-reader", written, is_committed_only=True),
        ]

    def _clients(self) -> list[Client]:
        places, shape = list(self.shape.places), self.shape
        self._make_readers()
        return [
            *(Producer(self, f"producer-{number}", places) for number in range(shape.producers)),
            *(TransactionalProducer(self, f"transactor-{number}", places) for number in range(shape.transactors)),
            *(OffsetCommitter(self, f"group-{number}", places[0]) for number in range(shape.committers)),
            *self._readers,
            *self._workers(),
            *self.planning.planners(),
        ]

    async def _read_everything(self) -> None:
        for reader in self._readers:
            for place in self.shape.written:
                while True:
                    try:
                        if not await reader.read_once(place):
                            break
                    except (PenstockError, Unreachable):
                        await asyncio.sleep(0.1)

    async def _scrub(self) -> None:
        """Have every node look for damage that nobody has come upon yet. None is left that it did not find."""
        asked = [(broker.scrub, node.life.run(broker.scrub.ask)) for node, broker in self.members()]

        def not_scrubbed() -> str:
            return "" if all(each.progress.completed_round >= number for each, number in asked) else "not yet"

        await self.until(not_scrubbed, _HEALING_MAX_S, "nodes do not scrub what they keep")
        await self.until(self._not_healed, _HEALING_MAX_S, "what a scrub found is not copied anew")
        for node, broker in self.members():
            for partition in broker.replicas:
                if any(segment.verify() for segment in partition.log.segments):
                    self.history.violate("damage is found", f"node {node.id} has overlooked some in {partition.id}")

    def add_node(self) -> BrokerNode:
        """A node comes that knows only where the first one is."""
        node = BrokerNode(self, max(self.nodes) + 1, self._cluster(join=Address(host_of(1), PORT)))
        self.nodes[node.id] = node
        node.start()
        return node

    # -- what others ask for ------------------------------------------------------------------------------------------

    def _not_healed(self) -> str:
        """Why not yet; nothing if all partitions are led, and all replicas in sync, as all nodes know."""
        if waiting := self.not_ready():
            return waiting
        reached = {broker.quorum.applied_index for _, broker in self.members()}
        if len(reached) > 1:
            return f"metadata is applied up to {reached}"
        for node, broker in self.members():
            fenced = [known.node_id for known in broker.metadata.nodes.values() if known.is_fenced]
            if fenced:
                return f"{fenced} are fenced"
            damaged = [partition.id for partition in broker.replicas if is_damaged(partition.log)]
            if damaged:
                return f"{damaged} of node {node.id} are damaged"
            for topic in broker.metadata.topics.values():
                for assigned in topic.partitions:
                    if assigned.leader < 0 or set(assigned.in_sync) != set(assigned.replicas) or assigned.adding:
                        return f"node {node.id} knows {topic.name} {assigned}"
                    if assigned.leader == node.id and not _leads(broker, topic.name, assigned.partition):
                        return f"node {node.id} should lead {topic.name}-{assigned.partition}"
        return ""

    def _open_transactions(self) -> str:
        """Where something is open that a worker has left, and keeps readers of committed data waiting."""
        for _, broker in self.members():
            for place in self.shape.written:
                if _leads(broker, *place):
                    partition = broker.replicas.get(*place)
                    if partition.last_stable_offset < partition.high_watermark:
                        return f"{partition.id} is stable up to {partition.last_stable_offset}"
        return ""

    def running(self) -> list[tuple[BrokerNode, Broker]]:
        """The nodes whose process is there, serving or not yet."""
        return [(node, node.broker) for node in self.nodes.values() if node.broker is not None]

    def members(self) -> list[tuple[BrokerNode, Broker]]:
        """The nodes that serve."""
        return [(node, node.broker) for node in self.nodes.values() if node.is_ready and node.broker is not None]

    def all_places(self) -> list[Place]:
        for _, broker in self.members():
            topics = broker.metadata.topics.values()
            return [(topic.name, assigned.partition) for topic in topics for assigned in topic.partitions]
        return []

    def can_lose(self, node: SimulatedNode[Any]) -> bool:
        """Whether all that is on a node's disk is elsewhere too: messages, and the quorum's log."""
        is_replicated = self.shape.replication_factor > 1 and self.shape.min_insync_replicas > 1
        if not is_replicated or not node.is_ready or self._not_healed():
            return False
        return not any(each.is_damaged for each in self.nodes.values()) and self._has_quorum_without(node.id)

    def _has_quorum_without(self, node_id: int) -> bool:
        """Whether most voters would still have the disk that they vote with."""
        disks = {node.id: broker.quorum.me.directory_id for node, broker in self.members() if node.id != node_id}
        leading = [broker.quorum.members for _, broker in self.members() if broker.quorum.is_leader]
        return any(
            sum(disks.get(voter) == disk for voter, disk in members.voters.items()) >= members.majority
            for members in leading
        )

    def visible_values(self) -> set[bytes]:
        """What a reader of committed transactions has seen by the end."""
        return self._readers[1].seen if self._readers else set()


def _leads(broker: Broker, topic: str, partition: int) -> bool:
    return broker.replicas.has(topic, partition) and broker.replicas.get(topic, partition).is_leader


async def _create(broker: Broker, *, command: CreateTopic) -> None:
    try:
        await broker.controller.submit(command)
    except TopicExists:
        return


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        await task
