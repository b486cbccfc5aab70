"""Topics: made, grown, set, emptied and deleted, by commands to the controller, wherever in the cluster that is.

A call returns when what was decided has taken effect on this node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from penstock.clock import Clock
from penstock.consensus.commands import (
    AddPartitions,
    Answer,
    Command,
    ConfigureResource,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    ProducerIds,
    ReserveProducerIds,
)
from penstock.consensus.controller import TopicSpec
from penstock.consensus.metadata import ClusterMetadata, Topic
from penstock.consensus.quorum.client import ControllerClient
from penstock.consensus.resource_config import ResourceKind
from penstock.consensus.topic_config import TopicSettings, resolve
from penstock.errors import InvalidRequest, PolicyViolation, TopicExists
from penstock.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, is_internal
from penstock.partitions.partition import Partition
from penstock.partitions.replicas import Replicas

# Internal topics that Kafka clients may ask for by name.
_KNOWN_TO_CLIENTS: Final = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
_COMPACTED: Final = {"cleanup.policy": "compact", "segment.bytes": str(8 * 1024 * 1024)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig:
    """What topics are made with."""

    node_id: int
    auto_create: bool = True
    default_partitions: int = 3
    default_replication_factor: int | None = None  # three, or as many as there are nodes
    internal_replication_factor: int = 3
    defaults: TopicSettings = field(default_factory=TopicSettings)
    # Partitions of internal topics when they are first made: how many nodes can share the work of coordinating.
    internal_partitions: Mapping[str, int] = field(default_factory=dict)


class Topics:
    """The topics of the cluster, as this node changes them."""

    def __init__(
        self,
        config: TopicsConfig,
        metadata: ClusterMetadata,
        controller: ControllerClient,
        replicas: Replicas,
        settled: Callable[[], Awaitable[None]],
        clock: Clock,
        new_id: Callable[[], UUID],
    ) -> None:
        """``settled`` returns once every change of metadata known here has taken effect: partitions are open."""
        self._config = config
        self._metadata = metadata
        self._controller = controller
        self._replicas = replicas
        self.settled = settled
        self._clock = clock
        self._new_id = new_id
        self._trims = asyncio.Lock()
        self._producer_ids: deque[int] = deque()

    async def command(self, command: Command) -> Answer:
        """Have the controller decide, and return once that has taken effect on this node."""
        answer = await self._controller.submit(command)
        await self.settled()
        return answer

    # -- making -------------------------------------------------------------------------------------------------------

    async def create(self, spec: TopicSpec, *, validate_only: bool = False) -> Topic | None:
        """Create a topic; None if it was only to be checked."""
        _check_not_internal(spec.name)
        return await self._create(spec, validate_only=validate_only)

    async def _create(self, spec: TopicSpec, *, validate_only: bool = False) -> Topic | None:
        command = CreateTopic(
            name=spec.name,
            topic_id=self._new_id(),
            partitions=spec.partitions,
            replication_factor=spec.replication_factor,
            configs=dict(spec.configs),
            assignment=_as_tuples(spec.assignment),
            default_partitions=self._config.default_partitions,
            default_replication_factor=self._config.default_replication_factor,
            is_only_checked=validate_only,
        )
        await self.command(command)
        return None if validate_only else self._metadata.topic(spec.name)

    async def ensure(self, name: str) -> Topic:
        """The topic; where there is none it is created, if this cluster creates topics on first use."""
        if name in _KNOWN_TO_CLIENTS:
            return await self.ensure_internal(name)
        if name not in self._metadata.topics and self._config.auto_create:
            try:
                await self.create(TopicSpec(name=name))
            except TopicExists:
                pass  # another caller was faster
        return await self.opened(self._metadata.topic(name))

    async def ensure_internal(self, name: str, configs: Mapping[str, str] = _COMPACTED) -> Topic:
        """A topic that holds the broker's own state, made when it is needed first."""
        if name not in self._metadata.topics:
            usable = sum(1 for node in self._metadata.nodes.values() if not node.is_fenced)
            factor = max(min(self._config.internal_replication_factor, usable), 1)
            partitions = self._config.internal_partitions[name]
            spec = TopicSpec(name=name, partitions=partitions, replication_factor=factor, configs=configs)
            try:
                await self._create(spec)
            except TopicExists:
                pass  # another caller was faster
        return await self.opened(self._metadata.topic(name))

    async def opened(self, topic: Topic) -> Topic:
        """The topic, once this node has opened its partitions: another caller may be creating it right now."""
        last = topic.partitions[-1]
        if self._config.node_id in last.replicas and not self._replicas.has(topic.name, last.partition):
            await self.settled()
        return topic

    # -- changing -----------------------------------------------------------------------------------------------------

    async def delete(self, name: str) -> None:
        _check_not_internal(name)
        await self.command(DeleteTopic(name=name))

    async def add_partitions(
        self,
        name: str,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Grow a topic to ``count`` partitions."""
        _check_not_internal(name)
        await self.command(
            AddPartitions(name=name, count=count, assignment=_as_tuples(assignment), is_only_checked=validate_only)
        )

    async def configure(self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """Set settings of a topic; None unsets one."""
        _check_not_internal(name)
        await self.command(ConfigureTopic(name=name, changes=dict(changes), is_only_checked=validate_only))

    async def configure_resource(
        self, kind: ResourceKind, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set settings of a group or a node (the empty name: of all nodes); None unsets one."""
        await self.command(
            ConfigureResource(kind=kind, name=name, changes=dict(changes), is_only_checked=validate_only)
        )

    def settings_of(self, name: str) -> TopicSettings:
        """A topic's settings, defaults included."""
        topic = self._metadata.topic(name)
        return resolve(self._config.defaults, topic.configs, topic.replication_factor)

    async def delete_records(self, topic: str, index: int, offset: int) -> int:
        """Delete records before ``offset`` (-1: all that are committed); the partition's new start."""
        _check_not_internal(topic)
        partition = self._replicas.get(topic, index)
        partition.check_leader()
        target = partition.high_watermark if offset == -1 else offset
        if target < -1 or target > partition.high_watermark:
            raise InvalidRequest(f"{partition.id} is committed up to {partition.high_watermark}, not to {offset}.")
        async with self._trims:
            return await self.trim(partition, target)

    async def trim(self, partition: Partition, offset: int, is_wanted: Callable[[], bool] = lambda: True) -> int:
        """Cut off a log what is before an offset, if that is still wanted once no other upkeep runs; its new start."""
        async with self._replicas.upkeep(partition):
            log = partition.log
            if is_wanted() and log.start_offset < offset <= partition.high_watermark:
                partition.check_leader()  # its topic may be gone, and another one of that name be where its files were
                await asyncio.to_thread(log.save_start, offset)
                dropped = log.trim(offset, is_saved=True) if offset > log.start_offset else []  # retention was faster
                await asyncio.to_thread(log.delete_files, dropped, self._clock.now_ms())
        return partition.log.start_offset

    async def allocate_producer_id(self) -> int:
        """A producer id that no producer has or ever had."""
        while not self._producer_ids:
            block = await self.command(ReserveProducerIds(node_id=self._config.node_id))
            assert isinstance(block, ProducerIds)
            self._producer_ids.extend(range(block.first, block.next))
        return self._producer_ids.popleft()


def _as_tuples(assignment: Sequence[Sequence[int]] | None) -> tuple[tuple[int, ...], ...] | None:
    return None if assignment is None else tuple(tuple(replicas) for replicas in assignment)


def _check_not_internal(topic: str) -> None:
    if is_internal(topic):
        raise PolicyViolation(
            f"{topic!r} holds the broker's own state; only the broker creates, changes, empties or deletes it."
        )
