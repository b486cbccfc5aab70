"""What operations are served with: the features of one node, each under its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.broker import Broker
from penstock.clock import Clock
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.quorum.client import ControllerClient
from penstock.consensus.quorum.driver import Quorum
from penstock.consensus.quorum.registration import Registration
from penstock.features.access.audit import AuditLog
from penstock.features.access.authenticator import Authenticator
from penstock.features.access.authorizer import Authorizer
from penstock.features.access.forwarding import Voucher
from penstock.features.dead_letters.dead_letters import DeadLetters
from penstock.features.groups.coordinator import GroupCoordinator
from penstock.features.groups.hosted.hosting import HostedMembers
from penstock.features.messages.publishing import Partitioners
from penstock.features.pipelines.board import Pipelines
from penstock.features.queues.queues import Queues
from penstock.features.quotas.quotas import Quotas
from penstock.features.schedules.schedules import Schedules
from penstock.features.transactions.coordinator import TransactionCoordinator
from penstock.features.transactions.joint.coordinator import JointCoordinator
from penstock.machines.ports import Ports
from penstock.partitions.access import Partitions
from penstock.partitions.replicas import Replicas
from penstock.partitions.scrub import Scrub
from penstock.partitions.stats import BrokerStats
from penstock.partitions.topics import Topics
from penstock.records import KeyHash, RoundRobin
from penstock.storage.encryption_note import MasterKeyRing
from penstock.supervision import Supervision

PARTITIONERS: Final = {"key_hash": KeyHash, "round_robin": RoundRobin}


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The features of one node, made at the composition root.

    ``broker`` is for reports and metrics of the whole node; operations use it for nothing that has a name here.
    """

    node_id: int
    clock: Clock
    metadata: ClusterMetadata
    queues: Queues
    dead_letters: DeadLetters
    schedules: Schedules
    groups: GroupCoordinator
    hosted: HostedMembers
    transactions: TransactionCoordinator
    joint: JointCoordinator
    pipelines: Pipelines
    controller: ControllerClient
    quorum: Quorum
    registration: Registration
    replicas: Replicas
    partitions: Partitions
    scrub: Scrub
    stats: BrokerStats
    supervision: Supervision
    partitioners: Partitioners
    started_at_ms: int
    ports: Ports
    topics: Topics
    authorizer: Authorizer
    authenticator: Authenticator
    audit: AuditLog
    voucher: Voucher
    quotas: Quotas
    broker: Broker
    master_keys: MasterKeyRing | None = None  # None: nothing is encrypted at rest
    # What the node should be looked at for, by its code; None while there is nothing.
    concerns: dict[str, Callable[[], str | None]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, broker: Broker, partitioners: Partitioners | None = None, master_keys: MasterKeyRing | None = None
    ) -> Services:
        """The services of a node."""
        return cls(
            node_id=broker.config.node_id,
            clock=broker.clock,
            metadata=broker.metadata,
            queues=broker.queues,
            dead_letters=broker.dead_letters,
            schedules=broker.schedules,
            groups=broker.groups,
            hosted=HostedMembers(broker.ports, broker.groups, broker.hosted_members),
            transactions=broker.transactions,
            joint=broker.joint,
            pipelines=broker.pipelines,
            controller=broker.controller,
            quorum=broker.quorum,
            registration=broker.registration,
            replicas=broker.replicas,
            partitions=broker.partitions,
            scrub=broker.scrub,
            stats=broker.stats,
            supervision=broker.supervision,
            partitioners=partitioners or Partitioners(PARTITIONERS, "key_hash"),
            started_at_ms=broker.clock.now_ms(),
            ports=broker.ports,
            topics=broker.topics,
            authorizer=broker.authorizer,
            authenticator=broker.authenticator,
            audit=broker.audit,
            voucher=Voucher(broker.config.cluster.token or ""),
            quotas=broker.quotas,
            broker=broker,
            master_keys=master_keys,
        )
