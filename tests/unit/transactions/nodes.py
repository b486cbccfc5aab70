"""Nodes with partitions, coordinators and a network, without brokers: what transactions across nodes need, and no more.

Every partition is on its leader alone. A new leader gets all that the old one had, as if it had been in sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from itertools import count
from pathlib import Path
from uuid import UUID

import msgspec
from tests.support.peers import PeerExchange
from tests.support.virtual_time import ClockWithHands, run

from penstock.config.settings import GroupSettings, TransactionSettings
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import MetadataRecord, NodeRegistered, PartitionAssigned, TopicCreated, TopicDeleted
from penstock.consensus.topic_config import TopicSettings
from penstock.errors import PenstockError, UnknownPartition
from penstock.features.groups.consumer.topics import NoTopics
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.transactions.coordinator import TransactionCoordinator
from penstock.features.transactions.messages import Where
from penstock.machines.clocks import PatientClock
from penstock.machines.leaders import Leaders
from penstock.machines.messages import ProducerIdentity, Rejected
from penstock.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from penstock.partitions.partition import Partition
from penstock.partitions.stats import TopicStats, TransactionStats
from penstock.records import Record, decode_records, encode_batch, parse_header, read_marker
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.supervision import Supervision
from penstock.testing.files import MemoryFiles

NOW_MS = 1_700_000_000_000
Verdict = frozenset[Where] | PenstockError


class NoSyncer:
    def request(self, log: Log) -> None:
        raise AssertionError("nothing here waits for a disk")


class Node:
    """One node. Its metadata is its own, so that it can know less than others for a while."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.id = node_id
        self.peers = cluster.exchange.join(node_id)
        self.metadata = ClusterMetadata()
        self.backlog: list[MetadataRecord] | None = None  # what it has not heard yet, while it lags
        self.partitions: dict[Where, Partition] = {}
        self.clock = ClockWithHands()
        leaders, time = Leaders(node_id, self.metadata, self.peers, self.clock), PatientClock(self.clock)
        supervision = Supervision(self.clock)
        self.groups = GroupCoordinator(GroupSettings(), leaders, time, NoTopics(), syncs=False, supervision=supervision)
        self.transactions = TransactionCoordinator(
            TransactionSettings(),
            leaders,
            time,
            TransactionStats(),
            self.find,
            self.groups,
            cluster.allocate,
            syncs=False,
            supervision=supervision,
        )

    def find(self, topic: str, index: int) -> Partition:
        if (topic, index) not in self.partitions:
            raise UnknownPartition(f"{topic}-{index} is not on node {self.id}.")
        return self.partitions[topic, index]

    def hear(self, record: MetadataRecord) -> None:
        if self.backlog is None:
            self.metadata.apply(record)
        else:
            self.backlog.append(record)

    def catch_up(self) -> None:
        backlog, self.backlog = self.backlog or [], None
        for record in backlog:
            self.metadata.apply(record)

    def start(self) -> None:
        self.groups.start()
        self.transactions.start()

    async def stop(self) -> None:
        await self.transactions.stop()
        await self.groups.stop()
        await self.peers.stop()

    async def admit(
        self, name: str, producer: ProducerIdentity, *places: Where, adds: bool = True, then: Callable[[], None] = id
    ) -> Verdict:
        """What the coordinator says; ``then`` is done in the turn in which it holds, if nothing is missing."""
        told: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

        def reply(answer: frozenset[Where] | Rejected) -> None:
            if not answer and then is not id:
                then()
            told.set_result(answer.error if isinstance(answer, Rejected) else answer)

        self.transactions.admit(name, producer, frozenset(places), reply, adds=adds)
        return await told


class Cluster:
    """Three nodes, a topic ``t`` with a partition on each, and the topics of coordinators."""

    def __init__(self) -> None:
        self.exchange = PeerExchange()
        self._ids = count(1000)
        self._files = count()
        self.nodes: dict[int, Node] = {}
        for node_id in (1, 2, 3):
            self.nodes[node_id] = Node(self, node_id)
        for node_id in self.nodes:
            self.tell(NodeRegistered(node_id=node_id, epoch=1, endpoints=()))

    async def allocate(self) -> int:
        return next(self._ids)

    def tell(self, record: MetadataRecord) -> None:
        for node in self.nodes.values():
            node.hear(record)

    # -- partitions ---------------------------------------------------------------------------------------------------

    def create(self, topic: str, *leaders: int) -> None:
        """A topic with a partition for each of these leaders."""
        topic_id = UUID(int=next(self._ids))
        self.tell(TopicCreated(name=topic, topic_id=topic_id))
        for index, leader in enumerate(leaders):
            assigned = PartitionAssigned(
                topic_id=topic_id,
                partition=index,
                replicas=(leader,),
                in_sync=(leader,),
                leader=leader,
                leader_epoch=0,
                partition_epoch=0,
            )
            self.tell(assigned)
            self._lead(self.nodes[leader], (topic, index), self._open((topic, index)), 0)

    def delete(self, topic: str) -> None:
        topic_id = next(node.metadata.topic(topic).topic_id for node in self.nodes.values() if node.backlog is None)
        self.tell(TopicDeleted(topic_id=topic_id))
        for node in self.nodes.values():
            node.partitions = {where: each for where, each in node.partitions.items() if where[0] != topic}

    def _open(self, where: Where) -> Partition:
        log = Log.open(MemoryFiles(), Path(f"/{next(self._files)}"), LogConfig())
        return Partition(TopicPartition(*where), log, TopicSettings(), TopicStats(), NoSyncer(), syncs=False)

    def _lead(self, node: Node, where: Where, partition: Partition, epoch: int) -> None:
        node.partitions[where] = partition
        partition.lead(epoch)
        node.groups.on_leadership_gained(partition)
        node.transactions.on_leadership_gained(partition)

    def leader(self, topic: str, index: int) -> Node:
        (node,) = (node for node in self.nodes.values() if self.is_led(node, (topic, index)))
        return node

    def is_led(self, node: Node, where: Where) -> bool:
        return where in node.partitions and node.partitions[where].is_leader

    def partition(self, topic: str, index: int) -> Partition:
        return self.leader(topic, index).partitions[topic, index]

    def orphan(self, topic: str, index: int) -> None:
        """Nobody leads it for now."""
        self._assign((topic, index), -1)

    def move(self, topic: str, index: int, node_id: int, *, resigns: bool = True) -> None:
        """Another node leads from now on. The old one knows, unless it does not resign."""
        where = (topic, index)
        holders = [node for node in self.nodes.values() if where in node.partitions]
        old = max((node.partitions[where] for node in holders), key=lambda each: each.leader_epoch)
        fresh = self._open(where)
        for batch in old.log.batches(0):
            data = memoryview(bytearray(batch.read()))
            header = parse_header(data)
            fresh.log.append(data, header, header.leader_epoch)
        fresh.on_synced()
        if resigns:
            self._resign(where)
        epoch = self._assign(where, node_id)
        self._lead(self.nodes[node_id], where, fresh, epoch)

    def _assign(self, where: Where, leader: int) -> int:
        known = [node.metadata.partition(*where) for node in self.nodes.values() if node.backlog is None]
        last = max(known, key=lambda each: each.leader_epoch)
        epoch = last.leader_epoch + 1
        self.tell(
            msgspec.structs.replace(
                last, leader=leader, leader_epoch=epoch, partition_epoch=epoch, replicas=(leader,), in_sync=(leader,)
            )
        )
        return epoch

    def _resign(self, where: Where) -> None:
        for node in self.nodes.values():
            if self.is_led(node, where):
                partition = node.partitions.pop(where)
                partition.resign()
                node.groups.on_leadership_lost(partition)
                node.transactions.on_leadership_lost(partition)

    # -- what is in them ----------------------------------------------------------------------------------------------

    def write(self, where: Where, producer: ProducerIdentity, *values: str, sequence: int = 0) -> None:
        records = [Record(at, NOW_MS, None, value.encode()) for at, value in enumerate(values)]
        batch = encode_batch(
            records,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        self.partition(*where).append(memoryview(batch), NOW_MS, is_durable=False)

    def story(self, topic: str, index: int) -> list[str]:
        """What a partition's log tells, as ``7/0: value`` and ``7/1 commits``."""
        return list(tales(self.partition(topic, index)))


def tales(partition: Partition) -> Iterator[str]:
    for batch in partition.log.batches(0):
        data = memoryview(batch.read())
        header = parse_header(data)
        who = f"{header.producer_id}/{header.producer_epoch}"
        if header.is_control:
            yield f"{who} {'commits' if read_marker(data).is_commit else 'aborts'}"
            continue
        for record in decode_records(data):
            yield f"{who}: {(record.value or b'').decode()}"


async def until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def play(story: Callable[[Cluster], Coroutine[None, None, None]]) -> None:
    """Tell a story of three nodes; node 1 coordinates transactions, node 2 groups."""

    async def told() -> None:
        cluster = Cluster()
        for node in cluster.nodes.values():
            node.start()
        cluster.create("t", 1, 2, 3)
        cluster.create(TRANSACTIONS_TOPIC, 1)
        cluster.create(OFFSETS_TOPIC, 2)
        try:
            await story(cluster)
        finally:
            for node in cluster.nodes.values():
                await node.stop()

    run(told)


async def gathered(*work: Awaitable[object]) -> Sequence[object]:
    return await asyncio.gather(*work)
