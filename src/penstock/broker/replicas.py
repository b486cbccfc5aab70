"""The partitions that live on this node, kept in step with the metadata.

Metadata says what should be; this room makes it so: it opens logs, takes up and gives up leadership, and moves the
directories of deleted topics out of the way. Whoever needs to know about leadership listens here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from penstock.broker.config import BrokerConfig
from penstock.broker.partition import Partition
from penstock.broker.stats import BrokerStats
from penstock.cluster.metadata import ClusterMetadata, Topic
from penstock.cluster.records import PartitionAssigned
from penstock.cluster.topic_config import TopicSettings, resolve
from penstock.errors import PenstockError, UnknownPartition
from penstock.model import TopicPartition
from penstock.storage.checked import decode_checked, encode_checked
from penstock.storage.commit import GroupCommit
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Files, read_file, replace_file
from penstock.storage.log import Log

log = logging.getLogger(__name__)

_OPENING_THREADS: Final = 8
_TOPIC_ID_FILE: Final = "topic-id"
_DELETED: Final = ".deleted-"
_STRAY: Final = ".stray-"


class LeadershipListener(Protocol):
    """Who keeps state beside a partition's log: coordinators, queues, replication."""

    def on_leadership_gained(self, partition: Partition) -> None: ...
    def on_leadership_lost(self, partition: Partition) -> None: ...


class Replicas:
    """Every replica on this node, by topic and partition."""

    def __init__(
        self, files: Files, data: DataDirectory, config: BrokerConfig, metadata: ClusterMetadata, stats: BrokerStats
    ) -> None:
        self._files = files
        self._data = data
        self._config = config
        self._metadata = metadata
        self._stats = stats
        self._partitions: dict[TopicPartition, Partition] = {}
        self._by_log: dict[Log, Partition] = {}
        self._listeners: list[LeadershipListener] = []
        self.has_unopened = False
        self._on_synced: Callable[[Log, float], None] = lambda *_: None
        self._commit = GroupCommit(lambda log, seconds: self._on_synced(log, seconds), threads=config.sync_threads)
        self._threads = ThreadPoolExecutor(_OPENING_THREADS, thread_name_prefix="penstock-open")
        self._claims = threading.Lock()  # the partitions of a topic are opened side by side and share its directory

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    def get(self, topic: str, index: int) -> Partition:
        """The replica, or an error that says whether topic or partition is missing."""
        partition = self._partitions.get((topic, index))  # type: ignore[call-overload]
        if partition is None:
            self._metadata.partition(topic, index)  # raises if there is no such partition anywhere
            raise UnknownPartition(f"{topic}-{index} is not on this node, or is still being opened. Try again.")
        return partition  # type: ignore[no-any-return]

    def has(self, topic: str, index: int) -> bool:
        """Whether the replica is here and open."""
        return (topic, index) in self._partitions

    def listen(self, listener: LeadershipListener) -> None:
        """Be told of leadership from now on, and at once of what is led already."""
        self._listeners.append(listener)
        for partition in self:
            if partition.is_leader:
                listener.on_leadership_gained(partition)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hear of finished syncs on ``loop`` from now on."""

        def on_synced(log: Log, seconds: float) -> None:
            try:
                loop.call_soon_threadsafe(self._synced, log, seconds)
            except RuntimeError:  # the loop is closed: nobody waits any more
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
        for log, seconds in self._commit.reap():
            self._synced(log, seconds)

    def _synced(self, log: Log, seconds: float) -> None:
        self._stats.sync_latency.observe(seconds)
        partition = self._by_log.get(log)
        if partition is not None:
            partition.on_synced()

    def request_sync(self, partition: Partition) -> None:
        self._commit.request(partition.log)

    # -- following the metadata ---------------------------------------------------------------------------------------

    def open_all(self) -> None:
        """Open what the metadata places on this node, as at start-up."""
        self._clear_deleted()
        mine = [
            (topic, assigned)
            for topic in self._metadata.topics.values()
            for assigned in topic.partitions
            if self._config.node_id in assigned.replicas
        ]
        logs = self._threads.map(lambda pair: self._open_log(*pair), mine)
        for (topic, assigned), opened in zip(mine, logs, strict=True):
            self._adopt(topic, assigned, opened)

    async def open(self, topic: Topic, assignments: Sequence[PartitionAssigned]) -> None:
        """Open new partitions without holding up the event loop. What the disk refuses is left for `open_missing`."""
        loop = asyncio.get_running_loop()
        mine = [assigned for assigned in assignments if self._config.node_id in assigned.replicas]
        logs = await asyncio.gather(
            *(loop.run_in_executor(self._threads, self._open_log, topic, assigned) for assigned in mine),
            return_exceptions=True,
        )
        for assigned, opened in zip(mine, logs, strict=True):
            if isinstance(opened, Log):
                self._adopt(topic, assigned, opened)
            elif isinstance(opened, PenstockError):
                self.has_unopened = True
                log.error("%s-%d cannot be opened yet: %s", topic.name, assigned.partition, opened.message)
            else:
                raise opened

    async def open_missing(self) -> None:
        """Try again to open what could not be opened, as when the disk was full."""
        self.has_unopened = False
        for topic in tuple(self._metadata.topics.values()):
            missing = [assigned for assigned in topic.partitions if not self.has(topic.name, assigned.partition)]
            if missing:
                await self.open(topic, missing)

    def _open_log(self, topic: Topic, assigned: PartitionAssigned) -> Log:
        directory = self._data.partition(topic.name, assigned.partition)
        with self._claims:
            self._claim(directory.parent, topic.topic_id)
        return Log.open(self._files, directory, self._settings(topic).log)

    def _claim(self, directory: Path, topic_id: UUID) -> None:
        """Make sure that a topic's directory holds this topic and not an older one of the same name."""
        path = directory / _TOPIC_ID_FILE
        data = read_file(self._files, path)
        found = None if data is None else decode_checked(data)
        if found is not None and found.decode() != str(topic_id):
            stray = directory.with_name(f"{directory.name}{_STRAY}{found.decode()}")
            log.error("%s holds another topic's records; they were moved to %s.", directory, stray)
            self._files.rename(directory, stray)
            found = None
        if found is None:
            self._files.make_directory(directory)
            replace_file(self._files, path, encode_checked(str(topic_id).encode()))

    def _adopt(self, topic: Topic, assigned: PartitionAssigned, opened: Log) -> None:
        name = TopicPartition(topic.name, assigned.partition)
        partition = Partition(name, opened, self._settings(topic), self._stats.topic(topic.name), self._commit)
        self._partitions[name] = partition
        self._by_log[opened] = partition
        self.follow(partition, assigned)

    def follow(self, partition: Partition, assigned: PartitionAssigned) -> None:
        """Lead or stop leading, as the assignment says."""
        partition.in_sync_count = len(assigned.in_sync)
        is_leader = assigned.leader == self._config.node_id
        if partition.is_leader and (not is_leader or assigned.leader_epoch > partition.leader_epoch):
            partition.resign()
            for listener in self._listeners:
                listener.on_leadership_lost(partition)
        if is_leader and assigned.leader_epoch > partition.leader_epoch:
            partition.lead(assigned.leader_epoch)
            for listener in self._listeners:
                listener.on_leadership_gained(partition)

    def reconfigure(self, topic: Topic) -> None:
        """Let every partition of a topic know its new settings."""
        settings = self._settings(topic)
        for partition in self:
            if partition.id.topic == topic.name:
                partition.settings = settings
                partition.log.config = settings.log

    def _settings(self, topic: Topic) -> TopicSettings:
        return resolve(self._config.topic_defaults, topic.configs)

    async def drop_topic(self, topic: Topic) -> None:
        """Give up a deleted topic's partitions and remove their files."""
        gone = [partition for partition in self if partition.id.topic == topic.name]
        for partition in gone:
            del self._partitions[partition.id]
            del self._by_log[partition.log]
            if partition.is_leader:
                partition.resign()
                for listener in self._listeners:
                    listener.on_leadership_lost(partition)
        self._stats.topics.pop(topic.name, None)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._remove_topic, topic, [partition.log for partition in gone])

    def _remove_topic(self, topic: Topic, logs: list[Log]) -> None:
        for gone in logs:
            self._commit.wait(gone)
        directory = self._data.logs / topic.name
        doomed = directory.with_name(f"{topic.name}{_DELETED}{topic.topic_id}")
        try:
            self._files.rename(directory, doomed)
            self._files.remove_tree(doomed)
        except PenstockError as error:
            log.error("The files of deleted topic %s are still there: %s", topic.name, error.message)

    def _clear_deleted(self) -> None:
        """Finish removing topics that were being removed when the node stopped."""
        if not self._data.logs.is_dir():
            return
        for directory in self._data.logs.iterdir():
            if _DELETED in directory.name:
                self._files.remove_tree(directory)
            elif directory.name not in self._metadata.topics and _STRAY not in directory.name:
                log.warning("%s belongs to no topic of this cluster; it is left as it is.", directory)

    def close(self) -> None:
        """Sync and close every log."""
        self._commit.close()
        for partition in self:
            if partition.is_leader:
                partition.resign()
        for failed in self._threads.map(_close, [partition.log for partition in self]):
            if failed is not None:
                log.error("A log could not be closed in good order: %s", failed.message)
        self._threads.shutdown()


def _close(log: Log) -> PenstockError | None:
    try:
        log.close()
    except PenstockError as error:
        return error
    return None
