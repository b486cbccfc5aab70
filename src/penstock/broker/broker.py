"""The broker as every door sees it: one object, one vocabulary.

Doors translate their protocols to these calls and the errors they raise; nothing here knows of any protocol. The hot
path takes a partition with `partition` and appends to or reads from it directly. Everything that changes metadata is a
command to the controller, wherever in the cluster that is; a call returns when what was decided has taken effect here.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final

from penstock.broker.config import BrokerConfig
from penstock.broker.known_nodes import KnownNodes
from penstock.broker.resource_settings import ResourceSettings
from penstock.broker.surroundings import Surroundings
from penstock.consensus.controller import Rules
from penstock.consensus.quorum.client import ControllerClient
from penstock.consensus.quorum.controller import ControllerConfig, ControllerShell
from penstock.consensus.quorum.driver import Quorum
from penstock.consensus.quorum.formation import Formation, FormationPlan
from penstock.consensus.quorum.registration import NodeDescription, Registration
from penstock.consensus.quorum.store import QuorumStore
from penstock.consensus.raft.leading import RaftTiming
from penstock.consensus.raft.messages import Member
from penstock.errors import PenstockError
from penstock.features.access.audit import AuditLog
from penstock.features.access.audit_topic import PARTITIONS as AUDIT_PARTITIONS
from penstock.features.access.audit_topic import AuditTopic
from penstock.features.access.authenticator import Authenticator, Tokens
from penstock.features.access.authorizer import Authorizer
from penstock.features.dead_letters.dead_letters import DeadLetters
from penstock.features.groups.consumer.topics import MetadataTopics
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.pipelines.board import PARTITIONS as PIPELINES_PARTITIONS
from penstock.features.pipelines.board import Pipelines
from penstock.features.queues.queues import Queues
from penstock.features.quotas.quotas import Quotas
from penstock.features.redrives.redrives import PARTITIONS as REDRIVES_PARTITIONS
from penstock.features.redrives.redrives import Redrives
from penstock.features.schedules.schedules import Schedules
from penstock.features.transactions.coordinator import TransactionCoordinator
from penstock.features.transactions.joint.coordinator import JointCoordinator
from penstock.features.transactions.joint.records import WriterPlace
from penstock.machines.clocks import PatientClock
from penstock.machines.coordinator import Coordinators
from penstock.machines.leaders import Leaders
from penstock.machines.ports import Ports
from penstock.model import (
    AUDIT_TOPIC,
    OFFSETS_TOPIC,
    PIPELINES_TOPIC,
    REDRIVES_TOPIC,
    SCHEDULES_TOPIC,
    TRANSACTIONS_TOPIC,
)
from penstock.partitions.access import Partitions, PartitionService
from penstock.partitions.disk import RunningMark
from penstock.partitions.disk_health import DiskHealth
from penstock.partitions.housekeeping import Housekeeping
from penstock.partitions.metadata_applier import INTERNAL_DOOR, MetadataApplier
from penstock.partitions.partition import Partition
from penstock.partitions.replicas import Replicas
from penstock.partitions.replication.replication import Replication
from penstock.partitions.scrub import Scrub
from penstock.partitions.stats import BrokerStats
from penstock.partitions.topics import Topics, TopicsConfig
from penstock.storage.data_directory import DataDirectory
from penstock.supervision import Supervision

log = logging.getLogger(__name__)

_HEARTBEATS_IN_ELECTION: Final = 5  # so many heartbeats of a quorum's leader have to be missed before an election
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
        self.is_started = False  # whether this node is one of its cluster
        self.scrub = Scrub(self.replicas, config.partitions.storage.scrub, self.clock, self.stats.scrub)
        self._housekeeping = Housekeeping(self.replicas, config.partitions, self.clock, self.scrub, self.supervision)
        self._make_ports()
        self._make_access()
        self._make_coordinators()

    def _open(self) -> None:
        """What is on this disk, and who speaks for it."""
        config, surroundings, files = self.config, self.surroundings, self.surroundings.files
        cluster, clock, peers = config.cluster, self.clock, self.peers
        member = Member(config.node_id, self._data.identity.directory_id)
        pace = RaftTiming(
            election_ms=cluster.election_timeout_ms,
            heartbeat_ms=max(cluster.election_timeout_ms // _HEARTBEATS_IN_ELECTION, 1),
        )
        self._store = self._open_store(member)
        self.quorum = Quorum(self._store, peers, clock, _child(surroundings.random), pace)
        self.metadata = self.quorum.metadata
        self._formation = Formation(
            self.quorum, peers, _plan(config), _child(surroundings.random), clock, self.supervision
        )
        random = _child(surroundings.random)
        self.shell = ControllerShell(
            config.node_id, self.quorum, peers, clock, random, self._controlling(), supervision=self.supervision
        )
        self.controller = ControllerClient(self.quorum, peers, clock, _child(surroundings.random))
        self.replicas = Replicas(
            files, self._data, config.partitions, self.metadata, self.stats, surroundings.open_commit, clock
        )
        self.replication = Replication(
            config.node_id,
            self.replicas,
            peers,
            self.controller,
            clock,
            config.partitions,
            self.stats.replication,
            self.supervision,
        )
        self.quotas = Quotas(self.metadata, clock)
        self.resource_settings = ResourceSettings(config.node_id, self.metadata, self.replication, config.groups)
        self.partitions = Partitions(self.replicas, self.metadata, peers, clock)
        self._service = PartitionService(self.replicas, clock, syncs=self.syncs_before_ack)
        self._in_step = MetadataApplier(self.metadata, self.replicas, peers, self.supervision)
        self.known_nodes = KnownNodes(self.metadata, clock)
        self._mark = RunningMark(files, self._data.path, surroundings.boot_id)
        identity = NodeDescription(
            # Of the replicas, which are as they were also where the quorum knows this node by a new id.
            node_id=config.node_id,
            directory_id=member.directory_id,
            endpoints=config.endpoints,
            rack=config.rack,
        )
        self.registration = Registration(
            identity,
            self.quorum,
            self.controller,
            clock,
            session_ms=cluster.session_timeout_ms,
            heartbeat_ms=cluster.heartbeat_interval_ms,
            supervision=self.supervision,
            disk=DiskHealth(self.replicas, self._mark, syncs_before_ack=self.syncs_before_ack),
            on_admitted=self._on_admitted,
            on_quorum=self._on_quorum,
        )

    def _controlling(self) -> ControllerConfig:
        config, cluster = self.config, self.config.cluster
        rules = Rules(
            min_in_sync=config.partitions.topic_defaults.min_insync_replicas,
            internal_replication_factor=cluster.internal_replication_factor,
            groups=config.groups,
        )
        return ControllerConfig(session_ms=cluster.session_timeout_ms, voters=cluster.voters, rules=rules)

    def _open_store(self, member: Member) -> QuorumStore:
        surroundings = self.surroundings
        has_others = _plan(self.config).has_others(member.node_id)
        replace_id = (lambda: str(surroundings.new_id())) if has_others else None
        return QuorumStore.open(surroundings.files, self._data.metadata, member, self.clock, replace_id=replace_id)

    def _on_admitted(self, epoch: int) -> None:
        self.replicas.node_epoch = epoch
        self._in_step.apply_all()

    def _on_quorum(self, has_quorum: bool) -> None:
        self.replicas.is_isolated = not has_quorum

    def _make_ports(self) -> None:
        config = self.config
        topics_config = TopicsConfig(
            node_id=config.node_id,
            auto_create=config.auto_create_topics,
            default_partitions=config.topics.partitions,
            default_replication_factor=config.topics.replication_factor,
            internal_replication_factor=config.cluster.internal_replication_factor,
            defaults=config.partitions.topic_defaults,
            internal_partitions={
                OFFSETS_TOPIC: config.groups.offsets_partitions,
                TRANSACTIONS_TOPIC: config.transactions.state_partitions,
                SCHEDULES_TOPIC: config.schedules.partitions,
                REDRIVES_TOPIC: REDRIVES_PARTITIONS,
                PIPELINES_TOPIC: PIPELINES_PARTITIONS,
                AUDIT_TOPIC: AUDIT_PARTITIONS,
            },
        )
        self.topics = topics = Topics(
            topics_config,
            self.metadata,
            self.controller,
            self.replicas,
            self._in_step.caught_up,
            self.clock,
            self.surroundings.new_id,
        )
        # Names that doors still call; features go by ``ports``.
        self.create_topic = topics.create
        self.ensure_topic = topics.ensure
        self.ensure_offsets_topic = partial(topics.ensure_internal, OFFSETS_TOPIC)
        self.ensure_transactions_topic = partial(topics.ensure_internal, TRANSACTIONS_TOPIC)
        self.delete_topic = topics.delete
        self.add_partitions = topics.add_partitions
        self.configure_topic = topics.configure
        self.configure_resource = topics.configure_resource
        self.topic_settings = topics.settings_of
        self.trim = topics.delete_records
        self.allocate_producer_id = topics.allocate_producer_id
        self.command = topics.command
        self.settled = topics.settled
        self.time = PatientClock(self.clock)
        self._ticking: asyncio.Task[None] | None = None
        self.leaders = Leaders(config.node_id, self.metadata, self.peers, self.clock)
        self.ports = Ports(
            leaders=self.leaders,
            time=self.time,
            partitions=self.partitions,
            topics=topics,
            stats=self.stats,
            random=self.surroundings.random,
            supervision=self.supervision,
            syncs_before_ack=self.syncs_before_ack,
        )

    def _make_access(self) -> None:
        security = self.config.security
        self.authorizer = Authorizer(self.metadata.access, is_on=security.enabled, super_users=security.super_users)
        self.audit_topic = AuditTopic(self.ports, security.audit_retention_ms)
        self.audit = AuditLog(self.clock, self.config.node_id, self.audit_topic.add if security.enabled else None)
        tokens: Tokens | None = None
        if security.oidc.issuer is not None:
            # It brings an HTTP client along: only nodes that take tokens load it.
            from penstock.features.access.tokens import OidcTokens

            tokens = OidcTokens(security.oidc, self.clock)
        self.authenticator = Authenticator(self.metadata.access, security, self.clock, tokens)

    def _make_coordinators(self) -> None:
        config, topics = self.config, self.topics
        self.groups = GroupCoordinator(
            config.groups,
            self.leaders,
            self.time,
            MetadataTopics(self.metadata),
            self.resource_settings.member_times,
            syncs=self.syncs_before_ack,
            supervision=self.supervision,
        )
        self.transactions = TransactionCoordinator(
            config.transactions,
            self.leaders,
            self.time,
            self.stats.transactions,
            self.partition,
            self.groups,
            topics.allocate_producer_id,
            syncs=self.syncs_before_ack,
            supervision=self.supervision,
        )
        self.joint = JointCoordinator(
            config.transactions,
            self.time,
            self.stats.transactions,
            self.transactions.markers,
            self._has_place,
            partial(topics.ensure_internal, TRANSACTIONS_TOPIC),
            topics.allocate_producer_id,
            self.surroundings.new_id,
            syncs=self.syncs_before_ack,
            supervision=self.supervision,
        )
        self.queues = Queues(
            self.ports,
            self.groups,
            self.transactions,
            self.joint,
            offsets_retention_ms=config.groups.offsets_retention_ms,
        )
        self._redrives = Redrives(self.ports)
        self.dead_letters = DeadLetters(self.ports, self.queues, self._redrives)
        self.schedules = Schedules(self.ports, config.schedules)
        self.hosted_members: set[tuple[str, str]] = set()  # groups and ids of members that live in a door of this node
        self.pipelines = Pipelines(self.ports)
        self.coordinators: Coordinators = {
            OFFSETS_TOPIC: (self.groups,),
            TRANSACTIONS_TOPIC: (self.transactions, self.joint),
            PIPELINES_TOPIC: (self.pipelines,),
        }

    async def start(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Begin to work on the running event loop; return when this node is one of its cluster and does its part.

        ``prepare`` runs when commands can be given, before the node counts as started.
        """
        self.replicas.attach(asyncio.get_running_loop())
        self._housekeeping.start()
        self._in_step.start()
        self._ticking = self.supervision.start("the clock of coordinators", self.time.run)
        for coordinator in (self.groups, self.transactions, self.joint, self._redrives, self.pipelines):
            coordinator.start()
            self.replicas.listen(coordinator)
        self.queues.start()
        self.schedules.start()
        self.audit_topic.start()
        for listener in (self.known_nodes, self._in_step, self.resource_settings, self.quotas):
            self.quorum.listen(listener.on_applied, listener.on_reset, lambda _: None)
        self._service.serve(self.peers)
        self.replication.start()
        self.shell.start()
        await self._formation.begin()
        await self._read_metadata()
        self.resource_settings.apply()  # listeners do not hear of the snapshot that this disk had
        self.quotas.apply()
        self._mark.set()
        await self.registration.start()
        await self._in_step.caught_up()
        if prepare is not None:
            await prepare()
        self.is_started = True

    async def _read_metadata(self) -> None:
        """Wait for a leader, and, not for long, until what this disk has of the metadata has taken effect: a node that
        registers should know what is wrong with its logs.
        """
        known = self._store.last_index
        while self.quorum.leader_id is None:  # noqa: ASYNC110 - the quorum has no listener for it
            await asyncio.sleep(_LOOK_SECONDS)
        for _ in range(_LOOKS_FOR_ENTRIES):
            if self.quorum.applied_index >= known:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        # One that had to fetch the metadata anew knows of no replica before: it would vouch for all, unseen.
        await self.quorum.applied(self._store.reach)
        await self._in_step.caught_up()

    async def leave(self) -> None:
        """Hand over what this node leads, before it stops; clients find the new leaders while the doors are open."""
        await self.audit_topic.flush()
        await self.registration.leave()

    async def close(self) -> None:
        """Stop, leaving every log synced and ready to open without a scan. One failure stops no other part."""
        for part in (
            self.audit_topic,
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
        if self._ticking is not None:
            self._ticking.cancel()
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
        return self.config.partitions.syncs_before_ack

    # -- metadata -----------------------------------------------------------------------------------------------------

    @property
    def has_groups(self) -> bool:
        """Whether there can be any group: the first one creates the topic they are kept in."""
        return OFFSETS_TOPIC in self.metadata.topics

    def _has_place(self, place: WriterPlace) -> bool:
        topic = self.metadata.topics.get(place.topic)
        return topic is not None and str(topic.topic_id) == place.topic_id

    def disk_usage(self) -> tuple[int, int]:
        """(total, free) bytes of the disk under the data directory."""
        usage = shutil.disk_usage(self.config.data_dir)
        return usage.total, usage.free


def _tell_unclosed(error: Exception) -> None:
    if isinstance(error, PenstockError):
        log.error("Not everything could be closed in good order: %s", error.message)
    else:
        log.error("Not everything could be closed.", exc_info=error)


def _plan(config: BrokerConfig) -> FormationPlan:
    own = next(((door.host, door.port) for door in config.endpoints if door.door == INTERNAL_DOOR), None)
    first = {peer.node_id: peer.address for peer in config.cluster.peers}
    return FormationPlan(first=first, join=config.cluster.join, address=own)


def _child(random: Random) -> Random:
    """Chance of its own for one part, so that parts do not disturb each other's."""
    return Random(random.getrandbits(64))
