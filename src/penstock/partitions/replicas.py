"""The partitions that live on this node, kept in step with the metadata.

Metadata says what should be; `Replicas` makes it so: it opens logs, takes up and gives up leadership, and moves the
directories of what is no longer here out of the way. State machines listen here for leadership, and the fetcher is
told which leaders to follow.

A node leads nothing before it is registered in this life (``node_epoch``): what the metadata said in the life before
may have been decided otherwise since, and a leader epoch must not span two lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, Protocol
from uuid import UUID

from penstock.clock import Clock, SystemClock
from penstock.consensus.commands import DoubtedReplica
from penstock.consensus.metadata import ClusterMetadata, Topic
from penstock.consensus.records import NO_LEADER, PartitionAssigned
from penstock.consensus.topic_config import TopicSettings, resolve
from penstock.errors import NotLeader, PenstockError
from penstock.model import TopicPartition
from penstock.partitions.config import PartitionsConfig
from penstock.partitions.damage import cut_torn, doubt_of, mark_future_epochs, try_to_change
from penstock.partitions.disk import Disk
from penstock.partitions.log_directories import NOTHING_KNOWN, LogDirectories, SavedOffsets, Watermarks, close_log
from penstock.partitions.partition import LeadershipListener, Partition
from penstock.partitions.replication.followers import Followers, ReplicaAssignment
from penstock.partitions.stats import BrokerStats
from penstock.storage.commit import GroupCommit
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Files
from penstock.storage.log import Log
from penstock.storage.ranges import OffsetRange

log = logging.getLogger(__name__)

_OPENING_THREADS: Final = 8


class ReplicaFetcher(Protocol):
    """Copies from leaders elsewhere. All calls may be repeated."""

    def follow(self, partition: Partition, leader_id: int) -> None:
        """Copy from that leader, in the leader epoch that the partition knows."""

    def leave(self, partition: Partition) -> None:
        """Stop copying."""


class Replicas:
    """Every replica on this node, by topic and partition."""

    def __init__(
        self,
        files: Files,
        data: DataDirectory,
        config: PartitionsConfig,
        metadata: ClusterMetadata,
        stats: BrokerStats,
        open_commit: Callable[..., GroupCommit] = GroupCommit,
        clock: Clock | None = None,
    ) -> None:
        self._node_id = data.identity.node_id
        self._config = config
        self._metadata = metadata
        self._stats = stats
        self._clock = clock or SystemClock()
        self._directories = LogDirectories(files, data)
        self.disk = Disk(files, data.path)
        self._watermarks = Watermarks(files, data.path)
        self._known = self._watermarks.load()
        self._partitions: dict[TopicPartition, Partition] = {}
        self._by_log: dict[Log, Partition] = {}
        self._listeners: list[LeadershipListener] = []
        self._upkeep: dict[Partition, asyncio.Lock] = {}
        self._following = asyncio.Lock()
        self._saving = asyncio.Lock()
        self._has_cleared = False
        self._is_isolated = False
        self._interrupted: dict[Partition, int] = {}  # whose coordinators stopped while this node had lost the cluster
        self.node_epoch: int | None = None  # of the life that is registered; before that, nothing is led
        self.has_unopened = False
        self._doubtful: dict[tuple[UUID, int], DoubtedReplica] = {}
        self.fetcher: ReplicaFetcher | None = None
        self._on_synced: Callable[[Log, float], None] = lambda *_: None
        self._commit = open_commit(
            lambda log, seconds: self._on_synced(log, seconds), threads=config.storage.sync_threads
        )
        self._threads = ThreadPoolExecutor(_OPENING_THREADS, thread_name_prefix="penstock-open")

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    def get(self, topic: str, index: int) -> Partition:
        """The replica, or an error that says whether topic, partition or only the replica is missing."""
        partition = self._partitions.get((topic, index))  # type: ignore[call-overload]
        if partition is None:
            self._metadata.partition(topic, index)  # raises if there is no such partition anywhere
            raise NotLeader(f"This node does not lead {topic}-{index}, or is still opening it. Ask for metadata again.")
        return partition  # type: ignore[no-any-return]

    def led(self, topic: str, index: int) -> Partition | None:
        """The partition, if this node leads it now."""
        partition: Partition | None = self._partitions.get((topic, index))  # type: ignore[call-overload]
        return partition if partition is not None and partition.is_leader else None

    def has(self, topic: str, index: int) -> bool:
        """Whether the replica is here and open."""
        return (topic, index) in self._partitions

    def find(self, topic_id: UUID, index: int) -> Partition | None:
        """The replica of a topic that may meanwhile be another one of the same name."""
        topic = self._metadata.topic_by_id(topic_id)
        partition = None if topic is None else self._partitions.get(TopicPartition(topic.name, index))
        return partition if partition is not None and partition.topic_id == topic_id else None

    def assigned(self, partition: Partition) -> PartitionAssigned | None:
        """What the metadata says of a replica; None if there is no such partition any more."""
        topic = self._metadata.topic_by_id(partition.topic_id)
        if topic is None or partition.id.partition >= len(topic.partitions):
            return None
        return topic.partitions[partition.id.partition]

    @property
    def under_replicated(self) -> int:
        """How many partitions led here have replicas that are not in sync."""
        return sum(
            1
            for each in self._partitions.values()
            if each.followers is not None and len(each.followers.in_sync) < len(each.followers.replicas)
        )

    @property
    def is_isolated(self) -> bool:
        """Whether this node has lost the quorum: then nothing is promised any more that needs other nodes to agree."""
        return self._is_isolated

    @is_isolated.setter
    def is_isolated(self, value: bool) -> None:
        self._is_isolated = value
        if value:
            for partition in self:
                if partition.isolate() and partition.is_internal:
                    # Its coordinator has told changes that may never be. It reads the log again if this node leads on.
                    self._interrupted[partition] = partition.leader_epoch
                    self._notify_lost(partition)
            return
        for partition in self:
            partition.is_isolated = False
        interrupted, self._interrupted = self._interrupted, {}
        for partition, epoch in interrupted.items():
            if partition.is_leader and partition.leader_epoch == epoch:
                self._notify_gained(partition)

    def listen(self, listener: LeadershipListener) -> None:
        """Be told of leadership from now on, and at once of what is led already."""
        self._listeners.append(listener)
        for partition in self:
            if partition.is_leader:
                listener.on_leadership_gained(partition)

    # -- soundness ----------------------------------------------------------------------------------------------------

    @property
    def doubtful(self) -> tuple[DoubtedReplica, ...]:
        """Replicas that were cut or damaged when they were opened, and that the controller does not know of."""
        return tuple(self._doubtful.values())

    def on_reported(self, doubtful: Collection[DoubtedReplica]) -> None:
        """The controller knows of these."""
        for doubt in doubtful:
            self._doubtful.pop((doubt.topic_id, doubt.partition), None)
            if partition := self.find(doubt.topic_id, doubt.partition):
                partition.log.forget_doubt()

    # -- syncing ------------------------------------------------------------------------------------------------------

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hear of finished syncs on ``loop`` from now on."""

        def on_synced(log: Log, seconds: float) -> None:
            try:
                loop.call_soon_threadsafe(self._synced, log, seconds)
            except RuntimeError:  # the loop is closed, and with it everything that waited
                return

        self._on_synced = on_synced
        descriptor = self._commit.descriptor
        if descriptor is not None:
            loop.add_reader(descriptor, self._reap)

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hear of them no more."""
        if self._commit.descriptor is not None:
            loop.remove_reader(self._commit.descriptor)

    def _reap(self) -> None:
        for synced in self._commit.reap():
            self._synced(*synced)

    def _synced(self, log: Log, seconds: float) -> None:
        self._stats.sync_latency.observe(seconds)
        if (partition := self._by_log.get(log)) and not partition.is_held:
            partition.on_synced()

    def request_sync(self, partition: Partition) -> None:
        if not partition.is_held:
            self._commit.request(partition.log)

    @asynccontextmanager
    async def upkeep(self, partition: Partition) -> AsyncIterator[None]:
        """Rewrite a partition's files, one after the other: compaction, retention and truncation."""
        lock = self._upkeep.get(partition)
        if lock is None:
            lock = self._upkeep[partition] = asyncio.Lock()
        try:
            async with lock:
                yield
        finally:
            if partition.log.is_released:  # it is gone: a late caller must not keep its lock
                self._upkeep.pop(partition, None)

    async def rewrite(self, partition: Partition, change: Callable[[], None], is_wanted: Callable[[], bool]) -> bool:
        """Change a log in a thread, once no other upkeep runs on it, if that is wanted then; whether it was done."""
        async with self.upkeep(partition):
            if not is_wanted():
                return False
            partition.is_held = True
            try:
                await asyncio.to_thread(self._commit.wait, partition.log)
                if not is_wanted():
                    return False
                return await asyncio.to_thread(try_to_change, partition.log, change)
            except PenstockError as error:
                partition.log.fail(error.message)  # what is on disk may be anything between before and after
                return False
            finally:
                partition.is_held = False
                partition.on_truncated()

    # -- following the metadata ---------------------------------------------------------------------------------------

    async def follow(self, topic_ids: Collection[UUID] | None = None) -> None:
        """Make the replicas of these topics, or of all, what the metadata says. Doing it twice changes nothing."""
        async with self._following:
            if not self._has_cleared:
                self._has_cleared = True
                await self._in_thread(self._directories.clear, tuple(self._metadata.topics))
            wanted = None if topic_ids is None else set(topic_ids)
            await self._drop(
                [each for each in self if (wanted is None or each.topic_id in wanted) and self._is_gone(each)]
            )
            if self._known and self._is_registered():
                self._known = {key: known for key, known in self._known.items() if self._is_wanted(*key)}
            topics = [topic for topic in self._metadata.topics.values() if wanted is None or topic.topic_id in wanted]
            await self._open(topics)
            for topic in topics:
                await self._settle(topic)

    def _is_gone(self, partition: Partition) -> bool:
        return not self._is_wanted(partition.topic_id, partition.id.partition)

    def _is_wanted(self, topic_id: UUID, index: int) -> bool:
        """Whether the metadata wants a replica of this partition on this node."""
        topic = self._metadata.topic_by_id(topic_id)
        return topic is not None and index < len(topic.partitions) and self._node_id in topic.partitions[index].replicas

    async def _in_thread(self, work: Callable[..., object], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _open(self, topics: Sequence[Topic]) -> None:
        """Open what is missing without holding up the event loop. What the disk refuses is left for `open_missing`."""
        loop = asyncio.get_running_loop()
        missing = [
            (topic, assigned)
            for topic in topics
            for assigned in topic.partitions
            if self._node_id in assigned.replicas and not self.has(topic.name, assigned.partition)
        ]
        logs = await asyncio.gather(
            *(loop.run_in_executor(self._threads, self._open_log, *pair) for pair in missing), return_exceptions=True
        )
        for (topic, assigned), opened in zip(missing, logs, strict=True):
            if isinstance(opened, Log):
                self._add(topic, assigned, opened)
                continue
            if not isinstance(opened, PenstockError):
                raise opened
            self.has_unopened = True
            log.error("%s-%d cannot be opened yet: %s", topic.name, assigned.partition, opened.message)

    async def open_missing(self) -> None:
        """Try again to open what could not be opened, as when the disk was full."""
        self.has_unopened = False
        await self.follow(None)

    def _open_log(self, topic: Topic, assigned: PartitionAssigned) -> Log:
        name = TopicPartition(topic.name, assigned.partition)
        opened = self._directories.open(name, topic.topic_id, self._settings(topic).log)
        if len(assigned.replicas) > 1:
            known = self._known.get((topic.topic_id, assigned.partition), NOTHING_KNOWN)
            cut_torn(name, opened, known.high_watermark)
        elif opened.is_doubtful:
            opened.forget_doubt()  # there is no other copy that could have more
        return opened

    def _add(self, topic: Topic, assigned: PartitionAssigned, opened: Log) -> None:
        name = TopicPartition(topic.name, assigned.partition)
        partition = Partition(
            name,
            opened,
            self._settings(topic),
            self._stats.topic(topic.name),
            self._commit,
            topic_id=topic.topic_id,
            syncs=self._config.syncs_before_ack,
        )
        partition.is_isolated = self._is_isolated
        known = self._known.pop((topic.topic_id, assigned.partition), NOTHING_KNOWN)
        opened.on_refused = self.disk.refuse
        if len(assigned.replicas) > 1:
            doubt = doubt_of(name, topic.topic_id, opened, known.high_watermark)
            if doubt is not None:
                self._doubtful[topic.topic_id, assigned.partition] = doubt
            partition.restore(*known)
        self._partitions[name] = partition
        self._by_log[opened] = partition

    def _settings(self, topic: Topic) -> TopicSettings:
        return resolve(self._config.topic_defaults, topic.configs, topic.replication_factor)

    async def _settle(self, topic: Topic) -> None:
        settings = self._settings(topic)
        for index in range(len(topic.partitions)):
            partition = self._partitions.get(TopicPartition(topic.name, index))
            if partition is None or partition.topic_id != topic.topic_id:
                continue
            if partition.settings != settings:
                partition.configure(settings)  # first: who is in sync means nothing without how many have to be
            if partition.is_held:
                async with self.upkeep(partition):  # half a log neither leads nor follows
                    pass
            self._take_role(partition, topic.partitions[index])

    def _take_role(self, partition: Partition, assigned: PartitionAssigned) -> None:
        """Lead or follow, as the assignment says."""
        is_registered = self._is_registered()
        leads = assigned.leader == self._node_id and is_registered
        if is_registered and (latest := self.assigned(partition)) is not None:
            mark_future_epochs(partition.id, partition.log, latest.leader_epoch)
        partition.in_sync_count = len(assigned.in_sync)
        partition.note_lost(tuple(OffsetRange(each.first_offset, each.next_offset) for each in assigned.lost))
        if partition.is_leader and (not leads or assigned.leader_epoch > partition.leader_epoch):
            self._resign(partition)
        if leads and partition.is_leader:
            self._reassign(partition, assigned)
        elif leads and assigned.leader_epoch > partition.leader_epoch:
            self._lead(partition, assigned)
        elif not leads and assigned.leader not in {NO_LEADER, self._node_id}:
            if assigned.leader_epoch > partition.leader_epoch:
                partition.follow(assigned.leader_epoch)
            if self.fetcher is not None:
                self.fetcher.follow(partition, assigned.leader)
        elif self.fetcher is not None:
            self.fetcher.leave(partition)

    def _is_registered(self) -> bool:
        node = self._metadata.nodes.get(self._node_id)
        return node is not None and node.epoch == self.node_epoch

    def _lead(self, partition: Partition, assigned: PartitionAssigned) -> None:
        if self.fetcher is not None:
            self.fetcher.leave(partition)
        partition.lead(assigned.leader_epoch, self._followers(partition, assigned, partition.log.end_offset))
        self._notify_gained(partition)

    def _notify_gained(self, partition: Partition) -> None:
        for listener in self._listeners:
            listener.on_leadership_gained(partition)

    def _notify_lost(self, partition: Partition) -> None:
        for listener in self._listeners:
            listener.on_leadership_lost(partition)

    def _followers(self, partition: Partition, assigned: PartitionAssigned, epoch_start: int) -> Followers | None:
        if assigned.replicas == (self._node_id,):
            return None
        return Followers(
            self._node_id,
            _in_sync(assigned),
            self._is_eligible,
            min_in_sync=partition.settings.min_insync_replicas,
            epoch_start=epoch_start,
            lag_s=self._config.cluster.replica_lag_ms / 1000,
            now=self._clock.monotonic(),
        )

    def _is_eligible(self, node_id: int, epoch: int) -> bool:
        node = self._metadata.nodes.get(node_id)
        return node is not None and node.epoch == epoch and not node.is_fenced

    def _reassign(self, partition: Partition, assigned: PartitionAssigned) -> None:
        if partition.followers is None:
            partition.take_followers(self._followers(partition, assigned, partition.epoch_start))
        else:
            partition.assign(_in_sync(assigned), self._clock.monotonic())

    def _resign(self, partition: Partition) -> None:
        partition.resign()
        self._notify_lost(partition)

    async def _drop(self, gone: Sequence[Partition]) -> None:
        """Give up replicas that were deleted or have moved away, and remove their files."""
        for partition in gone:
            del self._partitions[partition.id], self._by_log[partition.log]
            self.disk.forget(partition.log)
            self._doubtful.pop((partition.topic_id, partition.id.partition), None)
            if self.fetcher is not None:
                self.fetcher.leave(partition)
            if partition.is_leader:
                self._resign(partition)
        if gone:
            await self._forget_watermarks()
        for partition in gone:
            async with self.upkeep(partition):  # upkeep of its files is done
                await self._in_thread(self._commit.wait, partition.log)
                partition.log.release()
        for topic_id, name in {each.topic_id: each.id.topic for each in gone}.items():
            if not any(each.topic_id == topic_id for each in self):
                if name not in self._metadata.topics:
                    self._stats.topics.pop(name, None)
                await self._in_thread(self._directories.remove_topic, name, topic_id)
                continue
            for partition in gone:
                if partition.topic_id == topic_id:
                    await self._in_thread(self._directories.remove_partition, partition.id, topic_id)

    # -- watermarks ---------------------------------------------------------------------------------------------------

    async def save_watermarks(self) -> None:
        """Note what is committed, for after a restart."""
        async with self._saving:
            await asyncio.to_thread(self._watermarks.save, self._committed())

    async def _forget_watermarks(self) -> None:
        """Note it without the replicas that were dropped, before their files go.

        Otherwise a restart would take the empty log of one that comes back for a log that has lost its records.
        """
        try:
            await self.save_watermarks()
        except PenstockError as error:
            log.warning("What is committed could not be noted: %s", error.message)

    def _committed(self) -> dict[tuple[UUID, int], SavedOffsets]:
        """Of every replica; those that are not opened yet keep what was known of them."""
        return self._known | {
            (each.topic_id, each.id.partition): SavedOffsets(each.high_watermark, each.last_stable_offset)
            for each in self
        }

    def close(self) -> None:
        """Sync and close every log."""
        self._commit.close()
        committed = self._committed()
        for partition in self:
            if partition.is_leader:
                partition.resign()
        for failed in filter(None, self._threads.map(close_log, [partition.log for partition in self])):
            log.error("A log could not be closed in good order: %s", failed.message)
        try:
            self._watermarks.save(committed)
        except PenstockError as error:
            log.warning("What is committed could not be noted: %s", error.message)
        self._threads.shutdown()


def _in_sync(assigned: PartitionAssigned) -> ReplicaAssignment:
    return ReplicaAssignment(assigned.replicas, assigned.in_sync, assigned.partition_epoch)
