"""The broker as every door sees it: one object, one vocabulary.

Doors translate their protocols to these calls and the errors they raise; nothing here knows of any protocol. The hot
path takes a partition with `partition` and appends to or reads from it directly. Everything that changes metadata is a
command to the controller, wherever in the cluster that is; a call returns when what was decided has taken effect here.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

from penstock.broker.condition import Condition
from penstock.broker.config import BrokerConfig, Fsync
from penstock.broker.coordination.neighbours import Neighbours
from penstock.broker.groups.consumer.topics import MetadataTopics
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.in_step import INTERNAL_DOOR, InStep
from penstock.broker.known_nodes import KnownNodes
from penstock.broker.partition import Partition
from penstock.broker.pipelines.board import PARTITIONS as PIPELINES_PARTITIONS
from penstock.broker.pipelines.board import Pipelines
from penstock.broker.queues.dead_letters import DeadLetters
from penstock.broker.queues.queues import Queues
from penstock.broker.queues.redrives.redrives import PARTITIONS as REDRIVES_PARTITIONS
from penstock.broker.queues.redrives.redrives import Redrives
from penstock.broker.remote import PartitionService, RemotePartitions
from penstock.broker.replicas import Replicas
from penstock.broker.replication.replication import Replication
from penstock.broker.resource_settings import ResourceSettings
from penstock.broker.running_mark import RunningMark
from penstock.broker.schedules.calendar import Calendar
from penstock.broker.scrub import Scrub
from penstock.broker.stats import BrokerStats
from penstock.broker.surroundings import Surroundings
from penstock.broker.transactions.coordinator import TransactionCoordinator
from penstock.broker.transactions.joint.coordinator import JointCoordinator
from penstock.broker.transactions.joint.records import Place
from penstock.cluster.commands import (
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
from penstock.cluster.controller import Rules, TopicSpec
from penstock.cluster.metadata import Topic
from penstock.cluster.raft.messages import Member
from penstock.cluster.raft.pace import Pace
from penstock.cluster.resource_config import GroupLimits, ResourceKind
from penstock.cluster.topic_config import TopicSettings, resolve
from penstock.errors import InvalidRequest, PenstockError, PolicyViolation, TopicExists
from penstock.model import OFFSETS_TOPIC, PIPELINES_TOPIC, REDRIVES_TOPIC, TRANSACTIONS_TOPIC, is_internal
from penstock.quorum.client import ControllerClient
from penstock.quorum.controller import ControllerConfig, ControllerShell
from penstock.quorum.driver import Quorum
from penstock.quorum.formation import Formation, Plan
from penstock.quorum.registration import Identity, Registration
from penstock.quorum.store import QuorumStore
from penstock.storage.data_directory import DataDirectory
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

_HEARTBEATS_IN_ELECTION: Final = 5  # so many heartbeats of a quorum's leader have to be missed before an election
_COMPACTED: Final = {"cleanup.policy": "compact", "segment.bytes": str(8 * 1024 * 1024)}
_LOOK_SECONDS: Final = 0.01
_LOOKS_FOR_ENTRIES: Final = 200


class Broker:
    """One node's broker. Construct it to open the data directory, `start` it on the loop, `close` it at the end."""

    def __init__(self, config: BrokerConfig, surroundings: Surroundings) -> None:
        self.config = config
        self.surroundings = surroundings
        self.clock = surroundings.clock
        self.peers = surroundings.peers
        self.stats = BrokerStats()
        self.supervision = Supervision(self.clock)
        self._data = DataDirectory(surroundings.files, config.data_dir, config.node_id)
        try:
            self._open()
        except BaseException:
            self._data.close()
            raise
        self._trims = asyncio.Lock()
        self._producer_ids: deque[int] = deque()
        self.is_started = False  # whether this node is one of its cluster
        self.scrub = Scrub(self.replicas, config.scrub, self.clock, self.stats.scrub)
        self._housekeeping = Housekeeping(self.replicas, config, self.clock, self.scrub, self.supervision)
        self._make_coordinators()

    def _open(self) -> None:
        """What is on this disk, and who speaks for it."""
        config, surroundings = self.config, self.surroundings
        cluster, clock, peers = config.cluster, self.clock, self.peers
        member = Member(config.node_id, self._data.identity.directory_id)
        pace = Pace(
            election_ms=cluster.election_timeout_ms,
            heartbeat_ms=max(cluster.election_timeout_ms // _HEARTBEATS_IN_ELECTION, 1),
        )
        self._store = QuorumStore.open(surroundings.files, self._data.metadata, member, clock)
        self.quorum = Quorum(self._store, peers, clock, _child(surroundings.random), pace)
        self.metadata = self.quorum.metadata
        self._formation = Formation(self.quorum, peers, _plan(config), _child(surroundings.random))
        rules = Rules(
            min_in_sync=config.topic_defaults.min_insync_replicas,
            internal_replication_factor=cluster.internal_replication_factor,
            groups=GroupLimits(
                session_timeout_min_ms=config.groups.session_timeout_min_ms,
                session_timeout_max_ms=config.groups.session_timeout_max_ms,
                session_timeout_ms=config.groups.session_timeout_ms,
                heartbeat_interval_ms=config.groups.heartbeat_interval_ms,
            ),
        )
        controlling = ControllerConfig(session_ms=cluster.session_timeout_ms, voters=cluster.voters, rules=rules)
        random = _child(surroundings.random)
        self.shell = ControllerShell(config.node_id, self.quorum, peers, clock, random, controlling)
        self.controller = ControllerClient(self.quorum, peers, clock, _child(surroundings.random))
        self.replicas = Replicas(
            surroundings.files, self._data, config, self.metadata, self.stats, surroundings.open_commit, clock
        )
        self.replication = Replication(
            config.node_id,
            self.replicas,
            peers,
            self.controller,
            clock,
            cluster,
            self.stats.replication,
            self.supervision,
        )
        self.resource_settings = ResourceSettings(config.node_id, self.metadata, self.replication, config.groups)
        self.remote = RemotePartitions(config.node_id, self.metadata, peers, clock)
        self._service = PartitionService(self.replicas, clock, syncs=self.syncs_before_ack)
        self._in_step = InStep(self.metadata, self.replicas, peers)
        self.known_nodes = KnownNodes(self.metadata, clock)
        self._mark = RunningMark(surroundings.files, self._data.path, surroundings.boot_id)
        identity = Identity(
            node_id=config.node_id, directory_id=member.directory_id, endpoints=config.endpoints, rack=config.rack
        )
        self.registration = Registration(
            identity,
            self.quorum,
            self.controller,
            clock,
            session_ms=cluster.session_timeout_ms,
            heartbeat_ms=cluster.heartbeat_interval_ms,
            disk=Condition(self.replicas, self._mark, syncs_before_ack=self.syncs_before_ack),
            on_admitted=self._on_admitted,
            on_quorum=self._on_quorum,
        )

    def _on_admitted(self, epoch: int) -> None:
        self.replicas.node_epoch = epoch
        self._in_step.look_at_all()

    def _on_quorum(self, has_quorum: bool) -> None:
        self.replicas.is_isolated = not has_quorum

    def _make_coordinators(self) -> None:
        config, clock = self.config, self.clock
        neighbours = Neighbours(config.node_id, self.metadata, self.peers)
        self.groups = GroupCoordinator(
            config.groups,
            clock,
            MetadataTopics(self.metadata),
            self.resource_settings.member_times,
            syncs=self.syncs_before_ack,
        )
        self.transactions = TransactionCoordinator(
            config.transactions,
            clock,
            self.stats.transactions,
            self.partition,
            self.groups,
            self.allocate_producer_id,
            neighbours,
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
            self.surroundings.new_id,
            syncs=self.syncs_before_ack,
        )
        self.queues = Queues(self)
        self._redrives = Redrives(self)
        self.dead_letters = DeadLetters(self, self._redrives)
        self.schedules = Calendar(self)
        self.hosted_members: set[tuple[str, str]] = set()  # groups and ids of members that live in a door of this node
        self.pipelines = Pipelines(self)

    async def start(self) -> None:
        """Begin to work on the running event loop; return when this node is one of its cluster and does its part."""
        self.replicas.attach(asyncio.get_running_loop())
        self._housekeeping.start()
        self._in_step.start()
        for coordinator, topic in (
            (self.groups, OFFSETS_TOPIC),
            (self.transactions, TRANSACTIONS_TOPIC),
            (self.joint, TRANSACTIONS_TOPIC),
            (self._redrives, REDRIVES_TOPIC),
            (self.pipelines, PIPELINES_TOPIC),
        ):
            coordinator.start(partial(self._partitions_of, topic))
            self.replicas.listen(coordinator)
        self.queues.start()
        self.schedules.start()
        for listener in (self.known_nodes, self._in_step, self.resource_settings):
            self.quorum.listen(listener.on_applied, listener.on_reset, lambda _: None)
        self._service.serve(self.peers)
        self.replication.start()
        self.shell.start()
        await self._formation.begin()
        await self._read_metadata()
        self.resource_settings.apply()  # listeners do not hear of the snapshot that this disk had
        self._mark.set()
        await self.registration.start()
        await self._in_step.caught_up()
        self.is_started = True

    async def _read_metadata(self) -> None:
        """Wait for a leader, and, not for long, until what this disk has of the metadata has taken effect: a node that
        registers should know what is wrong with its logs.
        """
        known = self._store.last_index
        while self.quorum.leader_id is None:  # noqa: ASYNC110 - the quorum has nobody to tell of it but us
            await asyncio.sleep(_LOOK_SECONDS)
        for _ in range(_LOOKS_FOR_ENTRIES):
            if self.quorum.applied_index >= known:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        await self._in_step.caught_up()

    async def leave(self) -> None:
        """Hand over what this node leads, before it stops; clients find the new leaders while the doors are open."""
        await self.registration.leave()

    async def close(self) -> None:
        """Stop, leaving every log synced and ready to open without a scan. What fails keeps nobody else from it."""
        for part in (
            self.registration,
            self._housekeeping,
            self._redrives,
            self.schedules,
            self.pipelines,
            self.queues,
            self.joint,
            self.transactions,
            self.groups,
            self._in_step,
            self.replication,
            self.shell,
            self._formation,
            self.quorum,
        ):
            try:
                await part.stop()
            except Exception as error:
                _tell_unclosed(error)
        self.replicas.detach(asyncio.get_running_loop())
        await asyncio.to_thread(self._close_files)

    def _close_files(self) -> None:
        for close in (self.replicas.close, self._store.close, self._mark.clear, self._data.close):
            try:
                close()
            except Exception as error:
                _tell_unclosed(error)

    # -- partitions: the hot path -------------------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition:
        """The partition on this node; `UnknownTopic`, `UnknownPartition` or `NotLeader` if there is none here."""
        return self.replicas.get(topic, index)

    def leader_of(self, topic: str, index: int) -> int:
        """The node that leads a partition; `NO_LEADER` if none does at the moment."""
        return self.metadata.partition(topic, index).leader

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
        command = CreateTopic(
            name=spec.name,
            topic_id=self.surroundings.new_id(),
            partitions=spec.partitions,
            replication_factor=spec.replication_factor,
            configs=dict(spec.configs),
            assignment=_as_tuples(spec.assignment),
            default_partitions=self.config.default_partitions,
            default_replication_factor=self.config.default_replication_factor,
            is_only_checked=validate_only,
        )
        await self.command(command)
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
                await self.settled()  # somebody else was faster, and it may still be opening
        return self.metadata.topic(name)

    async def ensure_offsets_topic(self) -> Topic:
        """The topic that groups keep their state in; it is created when the first group needs it."""
        return await self.ensure_internal_topic(OFFSETS_TOPIC, self.config.offsets_partitions)

    async def ensure_transactions_topic(self) -> Topic:
        """The topic that transactions keep their state in; it is created when the first one needs it."""
        return await self.ensure_internal_topic(TRANSACTIONS_TOPIC, self.config.transactions_partitions)

    async def ensure_redrives_topic(self) -> Topic:
        """The topic that redrives of dead letters are kept in; it is created when the first one needs it."""
        return await self.ensure_internal_topic(REDRIVES_TOPIC, REDRIVES_PARTITIONS)

    async def ensure_pipelines_topic(self) -> Topic:
        """The topic that pipelines report to; it is created when the first one does."""
        return await self.ensure_internal_topic(PIPELINES_TOPIC, PIPELINES_PARTITIONS)

    async def ensure_internal_topic(self, name: str, partitions: int, configs: Mapping[str, str] = _COMPACTED) -> Topic:
        """A topic that holds the broker's own state, made if this is the first time that somebody needs it."""
        if name not in self.metadata.topics:
            usable = sum(1 for node in self.metadata.nodes.values() if not node.is_fenced)
            factor = max(min(self.config.cluster.internal_replication_factor, usable), 1)
            spec = TopicSpec(name=name, partitions=partitions, replication_factor=factor, configs=configs)
            try:
                await self._create_topic(spec)
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

    async def configure_topic(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
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

    def topic_settings(self, name: str) -> TopicSettings:
        """A topic's settings, defaults included."""
        topic = self.metadata.topic(name)
        return resolve(self.config.topic_defaults, topic.configs, topic.replication_factor)

    async def trim(self, topic: str, index: int, offset: int) -> int:
        """Delete records before ``offset`` (-1: all that are committed); the partition's new start."""
        _check_not_internal(topic)
        partition = self.partition(topic, index)
        partition.check_leader()
        target = partition.high_watermark if offset == -1 else offset
        if target < -1 or target > partition.high_watermark:
            raise InvalidRequest(f"{partition.id} is committed up to {partition.high_watermark}, not to {offset}.")
        async with self._trims, self.replicas.upkeep(partition):
            partition.check_leader()  # its topic may be gone, and another one of that name be where its files were
            log = partition.log
            if target > log.start_offset:
                await asyncio.to_thread(log.save_start, target)
                dropped = log.trim(target, is_saved=True) if target > log.start_offset else []  # retention was faster
                await asyncio.to_thread(log.delete_files, dropped, self.clock.now_ms())
        return partition.log.start_offset

    async def allocate_producer_id(self) -> int:
        """A producer id that nobody has or ever had."""
        while not self._producer_ids:
            block = await self.command(ReserveProducerIds(node_id=self.config.node_id))
            assert isinstance(block, ProducerIds)
            self._producer_ids.extend(range(block.first, block.next))
        return self._producer_ids.popleft()

    def disk_usage(self) -> tuple[int, int]:
        """(total, free) bytes of the disk under the data directory."""
        usage = shutil.disk_usage(self.config.data_dir)
        return usage.total, usage.free

    # -- metadata -----------------------------------------------------------------------------------------------------

    async def command(self, command: Command) -> Answer:
        """Have the controller decide, and return once that has taken effect on this node."""
        answer = await self.controller.submit(command)
        await self._in_step.caught_up()
        return answer

    async def settled(self) -> None:
        """Return once every change of metadata known here has taken effect: a new topic's partitions are open."""
        await self._in_step.caught_up()


def _as_tuples(assignment: Sequence[Sequence[int]] | None) -> tuple[tuple[int, ...], ...] | None:
    return None if assignment is None else tuple(tuple(replicas) for replicas in assignment)


def _tell_unclosed(error: Exception) -> None:
    if isinstance(error, PenstockError):
        log.error("Not everything could be closed in good order: %s", error.message)
    else:
        log.error("Not everything could be closed.", exc_info=error)


def _plan(config: BrokerConfig) -> Plan:
    own = next(((door.host, door.port) for door in config.endpoints if door.door == INTERNAL_DOOR), None)
    first = {node_id: (host, port) for node_id, host, port in config.cluster.peers}
    return Plan(first=first, join=config.cluster.join, address=own)


def _child(random: Random) -> Random:
    """Chance of its own for one part, so that parts do not disturb each other's."""
    return Random(random.getrandbits(64))


def _check_not_internal(topic: str) -> None:
    if is_internal(topic):
        raise PolicyViolation(
            f"{topic!r} holds the broker's own state; only the broker creates, changes, empties or deletes it."
        )
