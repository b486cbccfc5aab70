"""The broker as every door sees it: one object, one vocabulary.

Doors translate their protocols to these calls and the errors they raise; nothing here knows of any protocol. The hot
path takes a partition with `partition` and appends to or reads from it directly. Everything that changes metadata goes
through `_commit`: decide, persist, apply, take effect, in that order and one at a time.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from uuid import uuid4

from penstock.broker.config import BrokerConfig, Fsync
from penstock.broker.groups.consumer.topics import MetadataTopics
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.partition import Partition
from penstock.broker.replicas import Replicas
from penstock.broker.stats import BrokerStats
from penstock.broker.transactions.coordinator import TransactionCoordinator
from penstock.broker.transactions.joint.coordinator import JointCoordinator
from penstock.broker.transactions.joint.records import Place
from penstock.clock import Clock
from penstock.cluster import controller
from penstock.cluster.controller import TopicSpec
from penstock.cluster.metadata import ClusterMetadata, Topic
from penstock.cluster.metadata_log import MetadataLog
from penstock.cluster.records import (
    ClusterCreated,
    MetadataRecord,
    PartitionAssigned,
    ProducerIdsReserved,
    TopicConfigured,
    TopicDeleted,
)
from penstock.cluster.topic_config import TopicSettings, resolve
from penstock.errors import InvalidRequest, PolicyViolation, TopicExists
from penstock.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, is_internal
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Files

Decision = Callable[[ClusterMetadata], list[MetadataRecord]]


class Broker:
    """One node's broker. Construct it to open the data directory, `start` it on the loop, `close` it at the end."""

    def __init__(self, config: BrokerConfig, files: Files, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.stats = BrokerStats()
        self._data = DataDirectory(files, config.data_dir, config.node_id)
        try:
            self._metadata_log = MetadataLog(files, self._data.metadata, clock)
            self.metadata = self._metadata_log.state
            self._register()
            self.replicas = Replicas(files, self._data, config, self.metadata, self.stats)
            self.replicas.open_all()
        except BaseException:
            self._data.close()
            raise
        self._commits = asyncio.Lock()
        self._trims = asyncio.Lock()
        self._producer_ids: deque[int] = deque()
        self._housekeeping = Housekeeping(self.replicas, config, clock)
        self.groups = GroupCoordinator(config.groups, clock, MetadataTopics(self.metadata), syncs=self.syncs_before_ack)
        self.transactions = TransactionCoordinator(
            config.transactions,
            clock,
            self.stats.transactions,
            self.partition,
            self.groups,
            self.allocate_producer_id,
            syncs=self.syncs_before_ack,
        )
        self.joint = JointCoordinator(
            config.joint,
            clock,
            self.stats.transactions,
            self.transactions.markers,
            self._has_place,
            self.ensure_transactions_topic,
            self.allocate_producer_id,
            syncs=self.syncs_before_ack,
        )

    def _register(self) -> None:
        records: list[MetadataRecord] = []
        if not self.metadata.cluster_id:
            records.append(ClusterCreated(cluster_id=uuid4().hex))
        records += controller.register_node(self.metadata, self.config.node_id, self.config.endpoints, self.config.rack)
        self._metadata_log.append(records)
        self._metadata_log.sync()
        for record in records:
            self.metadata.apply(record)

    def start(self) -> None:
        """Begin to work on the running event loop."""
        self.replicas.attach(asyncio.get_running_loop())
        self._housekeeping.start()
        self.groups.start(partial(self._partitions_of, OFFSETS_TOPIC))
        self.replicas.listen(self.groups)
        self.transactions.start(partial(self._partitions_of, TRANSACTIONS_TOPIC))
        self.replicas.listen(self.transactions)
        self.joint.start(partial(self._partitions_of, TRANSACTIONS_TOPIC))
        self.replicas.listen(self.joint)

    async def close(self) -> None:
        """Stop, leaving every log synced and ready to open without a scan."""
        await self._housekeeping.stop()
        await self.joint.stop()
        await self.transactions.stop()
        await self.groups.stop()
        async with self._commits:
            self.replicas.detach(asyncio.get_running_loop())
            await asyncio.to_thread(self._close_files)

    def _close_files(self) -> None:
        self.replicas.close()
        self._metadata_log.close()
        self._data.close()

    # -- partitions: the hot path -------------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition:
        """The partition on this node; `UnknownTopic` or `UnknownPartition` if there is none."""
        return self.replicas.get(topic, index)

    @property
    def syncs_before_ack(self) -> bool:
        """Whether ``acks=all`` means durable, not only written."""
        return self.config.fsync is Fsync.EVERY

    # -- topics -------------------------------------------------------------------------------------------------------

    async def create_topic(self, spec: TopicSpec, *, validate_only: bool = False) -> Topic | None:
        """Create a topic; None if it was only to be checked."""
        _check_not_internal(spec.name)
        return await self._create_topic(spec, validate_only=validate_only)

    async def _create_topic(self, spec: TopicSpec, *, validate_only: bool = False) -> Topic | None:
        topic_id = uuid4()

        def decide(metadata: ClusterMetadata) -> list[MetadataRecord]:
            return controller.create_topic(
                metadata,
                spec,
                topic_id,
                partitions=self.config.default_partitions,
                replication_factor=self.config.default_replication_factor,
            )

        await self._commit(decide, validate_only=validate_only)
        return None if validate_only else self.metadata.topic(spec.name)

    async def ensure_topic(self, name: str) -> Topic:
        """The topic; where there is none it is created, if this cluster creates topics on first use."""
        if name == OFFSETS_TOPIC:
            return await self.ensure_offsets_topic()
        if name == TRANSACTIONS_TOPIC:
            return await self.ensure_transactions_topic()
        if name not in self.metadata.topics and self.config.auto_create_topics:
            try:
                await self.create_topic(TopicSpec(name=name))
            except TopicExists:
                pass  # somebody else was faster
        return self.metadata.topic(name)

    async def ensure_offsets_topic(self) -> Topic:
        """The topic that groups keep their state in; it is created when the first group needs it."""
        return await self._ensure_internal_topic(OFFSETS_TOPIC, self.config.offsets_partitions)

    async def ensure_transactions_topic(self) -> Topic:
        """The topic that transactions keep their state in; it is created when the first one needs it."""
        return await self._ensure_internal_topic(TRANSACTIONS_TOPIC, self.config.transactions_partitions)

    async def _ensure_internal_topic(self, name: str, partitions: int) -> Topic:
        if name not in self.metadata.topics:
            configs = {"cleanup.policy": "compact", "segment.bytes": str(8 * 1024 * 1024)}
            try:
                await self._create_topic(TopicSpec(name=name, partitions=partitions, configs=configs))
            except TopicExists:
                pass  # two came at once
        return self.metadata.topic(name)

    @property
    def has_groups(self) -> bool:
        """Whether there can be any group: the first one creates the topic they are kept in."""
        return OFFSETS_TOPIC in self.metadata.topics

    def _has_place(self, place: Place) -> bool:
        topic = self.metadata.topics.get(place.topic)
        return topic is not None and str(topic.topic_id) == place.topic_id

    def _partitions_of(self, name: str) -> int:
        topic = self.metadata.topics.get(name)
        return len(topic.partitions) if topic else 0

    async def delete_topic(self, name: str) -> None:
        _check_not_internal(name)
        await self._commit(lambda metadata: controller.delete_topic(metadata, name))

    async def add_partitions(
        self,
        name: str,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Grow a topic to ``count`` partitions."""
        await self._commit(
            lambda metadata: controller.add_partitions(metadata, name, count, assignment), validate_only=validate_only
        )

    async def configure_topic(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set settings of a topic; None unsets one."""
        await self._commit(
            lambda metadata: controller.configure_topic(metadata, name, changes), validate_only=validate_only
        )

    def topic_settings(self, name: str) -> TopicSettings:
        """A topic's settings, defaults included."""
        return resolve(self.config.topic_defaults, self.metadata.topic(name).configs)

    async def trim(self, topic: str, index: int, offset: int) -> int:
        """Delete records before ``offset`` (-1: all that are committed); the partition's new start."""
        _check_not_internal(topic)
        partition = self.partition(topic, index)
        partition.check_leader()
        target = partition.high_watermark if offset == -1 else offset
        if target < -1 or target > partition.high_watermark:
            raise InvalidRequest(f"{partition.id} is committed up to {partition.high_watermark}, not to {offset}.")
        async with self._trims:
            log = partition.log
            if target > log.start_offset:
                await asyncio.to_thread(log.save_start, target)
                dropped = log.trim(target, is_saved=True) if target > log.start_offset else []  # retention was faster
                await asyncio.to_thread(log.delete_files, dropped)
        return partition.log.start_offset

    async def allocate_producer_id(self) -> int:
        """A producer id that nobody has or ever had."""
        node_id = self.config.node_id
        while not self._producer_ids:
            (block,) = await self._commit(lambda metadata: [controller.reserve_producer_ids(metadata, node_id)])
            assert isinstance(block, ProducerIdsReserved)
            self._producer_ids.extend(range(block.first_producer_id, block.next_producer_id))
        return self._producer_ids.popleft()

    def disk_usage(self) -> tuple[int, int]:
        """(total, free) bytes of the disk under the data directory."""
        usage = shutil.disk_usage(self.config.data_dir)
        return usage.total, usage.free

    # -- metadata -----------------------------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Return once every change of metadata under way has taken effect: a new topic's partitions are open."""
        async with self._commits:
            return

    async def _commit(self, decide: Decision, *, validate_only: bool = False) -> list[MetadataRecord]:
        async with self._commits:
            records = decide(self.metadata)
            if validate_only:
                return []
            self._metadata_log.append(records)
            await asyncio.to_thread(self._metadata_log.sync)
            await self._take_effect(records)
            self._metadata_log.snapshot_if_due()
            return records

    async def _take_effect(self, records: Sequence[MetadataRecord]) -> None:
        opening: list[PartitionAssigned] = []
        for record in records:
            match record:
                case TopicDeleted():
                    topic = self.metadata.topic_by_id(record.topic_id)
                    assert topic is not None
                    self.metadata.apply(record)
                    await self.replicas.drop_topic(topic)
                case TopicConfigured():
                    self.metadata.apply(record)
                    topic = self.metadata.topic_by_id(record.topic_id)
                    assert topic is not None
                    self.replicas.reconfigure(topic)
                case PartitionAssigned():
                    self.metadata.apply(record)
                    opening.append(record)
                case _:
                    self.metadata.apply(record)
        if opening:
            topic = self.metadata.topic_by_id(opening[0].topic_id)
            assert topic is not None
            await self.replicas.open(topic, opening)


def _check_not_internal(topic: str) -> None:
    if is_internal(topic):
        raise PolicyViolation(
            f"{topic!r} holds the broker's own state; only the broker creates, empties or deletes it."
        )
