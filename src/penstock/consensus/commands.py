"""What the controller can be asked for, by any node, and what it answers.

Commands travel to whichever node leads the quorum. It looks at the metadata, decides (`penstock.consensus.controller`),
has the records committed and answers with the index at which they were. An error means that nothing happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import msgspec

from penstock.access.acls import Acl, AclFilter
from penstock.access.api_keys import ApiKey
from penstock.access.scram import ScramCredential, ScramMechanism
from penstock.consensus.records import Endpoint, LostRecords, PartitionAssigned
from penstock.consensus.resource_config import ResourceKind


class CreateTopic(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A new topic. What is None takes the default; no default replication factor means 3, or one for each node."""

    name: str
    topic_id: UUID
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = {}
    assignment: tuple[tuple[int, ...], ...] | None = None
    default_partitions: int = 1
    default_replication_factor: int | None = None
    is_only_checked: bool = False


class DeleteTopic(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    name: str


class AddPartitions(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Grow a topic to ``count`` partitions."""

    name: str
    count: int
    assignment: tuple[tuple[int, ...], ...] | None = None
    is_only_checked: bool = False


class ConfigureTopic(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Set settings, or unset those whose value is None."""

    name: str
    changes: Mapping[str, str | None]
    is_only_checked: bool = False


class ConfigureResource(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Set settings of a group or a node (the empty name: of all nodes), or unset those whose value is None."""

    kind: ResourceKind
    name: str
    changes: Mapping[str, str | None]
    is_only_checked: bool = False


class ReserveProducerIds(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    node_id: int


class DoubtedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that was cut or is damaged: it is good up to ``end``, where the last batch is of ``last_epoch``."""

    topic_id: UUID
    partition: int
    last_epoch: int
    end: int


class RegisterNode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A node came up, fenced. ``has_lost_writes``: its disk may lack what it had acknowledged (KIP-966).

    ``doubtful`` names the replicas that may lack something where the others are known to be whole.
    """

    node_id: int
    directory_id: str
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    has_lost_writes: bool
    doubtful: tuple[DoubtedReplica, ...] = ()


class DoubtReplicas(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A node found replicas damaged: it gives up its place in them where another replica is in sync."""

    node_id: int
    epoch: int
    doubtful: tuple[DoubtedReplica, ...]


class PartitionLosses(msgspec.Struct, frozen=True, kw_only=True):
    """All that is lost of one partition, as its leader of that epoch finds."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    lost: tuple[LostRecords, ...]


class ReportLosses(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A leader found records damaged that no other replica has. Ignored where another one counts by now."""

    node_id: int
    epoch: int
    partitions: tuple[PartitionLosses, ...]


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A node is alive. It is let in once it has applied all that was committed when it registered."""

    node_id: int
    epoch: int
    applied_index: int
    is_leaving: bool = False  # wants to stop, and asks for its leaderships to be moved first
    is_unable: bool = False  # cannot write to its disk, so others had better lead


class InSyncChange(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas that a leader finds in sync, each with its node's epoch (KIP-903).

    Refused unless leader epoch and partition epoch are the present ones.
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]


class ChangeInSync(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From a leader: which replicas are in sync now."""

    node_id: int
    epoch: int
    changes: tuple[InSyncChange, ...]


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Where a partition's replicas are to be, the preferred leader first; None calls a move off."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class Reassign(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    moves: tuple[Move, ...]


class ElectLeaders(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Give partitions their preferred leaders, or, unclean, any living one. None means all partitions."""

    partitions: tuple[tuple[str, int], ...] | None
    is_unclean: bool = False


class DrainNode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Move leaderships, and if ``with_replicas`` the replicas too, away from a node; or, not draining, use it again."""

    node_id: int
    is_draining: bool = True
    with_replicas: bool = True


class RemoveNode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let a node go for good. Refused while it has replicas; ``is_forced`` leaves those to the others."""

    node_id: int
    is_forced: bool = False


class Rebalance(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Spread replicas and leaders evenly over the nodes; disk use too where the sizes of partitions are given."""

    is_only_planned: bool = False
    sizes: Mapping[str, tuple[int, ...]] = {}  # bytes of each partition, by topic


class TransferControl(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Hand the lead of the quorum to another voter; to any other, if none is named."""

    node_id: int | None = None


class SetCredentials(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let a user log in with these; each replaces the one of its mechanism."""

    user: str
    credentials: tuple[ScramCredential, ...]


class BeginAccess(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first user and API key of a cluster that has neither; nothing where there is one already."""

    user: str
    credentials: tuple[ScramCredential, ...]
    key: ApiKey


class RemoveCredentials(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Take a user's credentials of these mechanisms away; none named: all of them."""

    user: str
    mechanisms: tuple[ScramMechanism, ...] = ()


class AddAcls(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    acls: tuple[Acl, ...]
    is_only_checked: bool = False


class RemoveAcls(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Remove all rules that match; the answer says for each filter which those were."""

    filters: tuple[AclFilter, ...]
    is_only_checked: bool = False


class IssueApiKey(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    key: ApiKey


class RevokeApiKey(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    key_id: str


Command = (
    CreateTopic
    | DeleteTopic
    | AddPartitions
    | ConfigureTopic
    | ConfigureResource
    | ReserveProducerIds
    | RegisterNode
    | DoubtReplicas
    | ReportLosses
    | Heartbeat
    | ChangeInSync
    | Reassign
    | ElectLeaders
    | DrainNode
    | RemoveNode
    | Rebalance
    | TransferControl
    | BeginAccess
    | SetCredentials
    | RemoveCredentials
    | AddAcls
    | RemoveAcls
    | IssueApiKey
    | RevokeApiKey
)

# What a node asks for itself, in its own name.
OWN_COMMANDS: Final = (ReserveProducerIds, RegisterNode, DoubtReplicas, Heartbeat, ChangeInSync)


# -- answers -----------------------------------------------------------------------------------------------------------


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It is decided, and there is nothing to add."""


class ProducerIds(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    first: int
    next: int


class Admitted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The epoch of a registered node's life."""

    epoch: int


class Heard(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to a heartbeat. A node that asked to leave may stop once ``may_leave``."""

    is_fenced: bool
    may_leave: bool


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request for one partition; no error means it was granted (or that nothing was to be done)."""

    topic: str
    partition: int
    error: str | None = None  # the name of a class in penstock.errors
    message: str = ""
    assigned: PartitionAssigned | None = None  # the partition as it is now


class Outcomes(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    outcomes: tuple[Outcome, ...]


class StuckReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that a drain leaves where it is, and why."""

    topic: str
    partition: int
    reason: str


class Planned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The moves that a rebalance or a drain comes to, and what a drain cannot move."""

    moves: tuple[Move, ...]
    stuck: tuple[StuckReplica, ...] = ()


class AclsRemoved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The rules that each filter removed, in the order of the filters."""

    matches: tuple[tuple[Acl, ...], ...]


Answer = Done | ProducerIds | Admitted | Heard | Outcomes | Planned | AclsRemoved
