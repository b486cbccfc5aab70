"""The cluster: its quorum and nodes looked at, nodes drained and let go, replicas and leaders moved."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock import errors
from penstock.api import limits
from penstock.api.limits import NodeId, PartitionIndex, TopicName
from penstock.api.operation import Action, Repeat, Request, Resource, operation
from penstock.api.problems import Problem

NodeStatus = Literal["up", "draining", "fenced"]
Role = Literal["leader", "voter", "learner"]
NodeIds = Annotated[list[int], Meta(min_length=1, max_length=limits.NODES_LISTED_MAX)]

_LOOK: Final = Action.DESCRIBE.of(Resource.CLUSTER)
_CHANGE: Final = Action.ALTER.of(Resource.NODE)
_NODE_ERRORS: Final = (errors.PolicyViolation, errors.NodeNotFound, errors.NodeInUse, errors.NotController)


class PlaceView(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int


class EndpointView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a door of a node can be reached."""

    door: str
    host: str
    port: int


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    epoch: int
    rack: str | None
    endpoints: list[EndpointView]


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """Who is in the cluster, and how much it holds."""

    cluster_id: str
    controller: int | None
    nodes: list[NodeView]
    topics: int
    partitions: int
    partitions_without_leader: int
    metadata_version: int


class QuorumMemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A member of the quorum. `lag` is how many entries it is behind; both are null if it does not answer."""

    node_id: int
    role: Role
    applied_index: int | None
    lag: int | None


class ClusterNodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node. `fenced`: it is not heard of, so nobody is sent to it. What only it can tell is null then."""

    node_id: int
    status: NodeStatus
    epoch: int
    rack: str | None
    endpoints: list[EndpointView]
    leaders: int
    replicas: int
    version: str | None
    size_bytes: int | None
    disk_free_bytes: int | None
    disk_total_bytes: int | None
    corrupt_bytes: int | None
    scrubbed_at_ms: Annotated[int | None, Meta(description="When the last round of its scrub ended.")]


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as this node knows it. Lists of partitions have up to 1,000; the counts are of all."""

    cluster_id: str
    controller: Annotated[int | None, Meta(description="The node that leads the quorum; null while none does.")]
    term: int
    metadata_index: int
    quorum: list[QuorumMemberView]
    nodes: list[ClusterNodeView]
    topics: int
    partitions: int
    under_replicated: int
    leaderless: int
    moving: int
    under_replicated_partitions: list[PlaceView]
    leaderless_partitions: list[PlaceView]
    lossy: Annotated[int, Meta(description="Partitions of which records were damaged on every replica.")]
    lossy_partitions: list[PlaceView]


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    nodes: list[ClusterNodeView]


class PlaceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    partition: PartitionIndex


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """Where the replicas of a partition are to be; the first one is preferred as leader."""

    topic: str
    partition: int
    replicas: list[int]


class StuckView(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that cannot leave a node that is drained, and why."""

    topic: str
    partition: int
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    dry_run: bool
    moves: list[PlannedMove]
    stuck: Annotated[list[StuckView], Meta(description="Replicas that a drain leaves on the node.")] = []


class Transferred(msgspec.Struct, frozen=True, kw_only=True):
    controller: int | None


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    partition: PartitionIndex
    replicas: Annotated[NodeIds | None, Meta(description="The preferred leader first; null calls a move off.")]


class ReassignmentView(msgspec.Struct, frozen=True, kw_only=True):
    """A partition whose replicas are moving; `replicas` is where they will be.

    What is left is the sum over the replicas that come; null where a node does not answer.
    """

    topic: str
    partition: int
    leader: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]
    messages_left: int | None
    bytes_left: int | None


class ReassignmentList(msgspec.Struct, frozen=True, kw_only=True):
    reassignments: list[ReassignmentView]


class OutcomeView(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: as it is now where it was granted, else the error that kept it from being."""

    topic: str
    partition: int
    leader: int | None
    replicas: list[int] | None
    adding: list[int] | None
    removing: list[int] | None
    error: Problem | None


class OutcomeList(msgspec.Struct, frozen=True, kw_only=True):
    outcomes: list[OutcomeView]


def _is_partly(answer: OutcomeList) -> bool:
    return any(outcome.error is not None for outcome in answer.outcomes)


# -- looking -----------------------------------------------------------------------------------------------------------


@operation(
    "GET /v1/cluster",
    name="cluster_status",
    tag="cluster",
    needs=_LOOK,
    repeat=Repeat.SAFE,
    errors=(errors.NotController,),
    is_early=True,
)
class DescribeCluster(Request[ClusterStatus], frozen=True, kw_only=True):
    """The quorum, the nodes, and the partitions that lack something."""


@operation("GET /v1/admin/cluster", name="admin_cluster", tag="admin", needs=_LOOK, repeat=Repeat.SAFE, is_early=True)
class DescribeMembers(Request[ClusterView], frozen=True, kw_only=True):
    """The cluster as this node knows it."""


@operation(
    "GET /v1/nodes", tag="cluster", needs=_LOOK, repeat=Repeat.SAFE, errors=(errors.NotController,), is_early=True
)
class ListNodes(Request[NodeList], frozen=True, kw_only=True):
    """Every node of the cluster."""


@operation(
    "GET /v1/reassignments",
    tag="cluster",
    needs=_LOOK,
    repeat=Repeat.SAFE,
    errors=(errors.NotController,),
    is_early=True,
)
class ListReassignments(Request[ReassignmentList], frozen=True, kw_only=True):
    """Every partition whose replicas are moving, and how much they lack."""


# -- changing ----------------------------------------------------------------------------------------------------------


@operation(
    "POST /v1/cluster/rebalance",
    tag="cluster",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=_NODE_ERRORS,
    is_body_optional=True,
    body_max=limits.SMALL_BODY_BYTES_MAX,
    is_early=True,
)
class Rebalance(Request[Plan], frozen=True, kw_only=True):
    """Spread replicas and leaders evenly over the nodes and racks."""

    dry_run: Annotated[bool, Meta(description="Only tell what would be moved.")] = False


@operation(
    "POST /v1/cluster/transfer",
    name="transfer",
    tag="cluster",
    needs=_CHANGE,
    repeat=Repeat.AGAIN,
    errors=_NODE_ERRORS,
    is_body_optional=True,
    body_max=limits.SMALL_BODY_BYTES_MAX,
    is_early=True,
)
class TransferControl(Request[Transferred], frozen=True, kw_only=True):
    """Hand the lead of the quorum to another voter."""

    node_id: Annotated[int | None, Meta(description="The voter to lead the quorum; without it, any other.")] = None


@operation(
    "POST /v1/cluster/elect-leaders",
    tag="cluster",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=_NODE_ERRORS,
    also={207: _is_partly},
    is_body_optional=True,
    body_max=limits.SMALL_BODY_BYTES_MAX,
    is_early=True,
)
class ElectLeaders(Request[OutcomeList], frozen=True, kw_only=True):
    """Give partitions back to their preferred leaders."""

    partitions: Annotated[
        list[PlaceRequest] | None, Meta(description="Without it, all that are not led by their preferred replica.")
    ] = None
    unclean: Annotated[
        bool, Meta(description="Let any living replica lead where nobody in sync can. What it lacks is lost.")
    ] = False


@operation(
    "POST /v1/nodes/{node}/drain",
    tag="cluster",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=_NODE_ERRORS,
    is_body_optional=True,
    body_max=limits.SMALL_BODY_BYTES_MAX,
    misnamed=errors.InvalidRequest,
    is_early=True,
)
class DrainNode(Request[Plan], frozen=True, kw_only=True):
    """Give what a node leads, and its replicas, to other nodes; it gets nothing new until it is resumed."""

    node: NodeId
    replicas: Annotated[
        bool, Meta(description="Move the replicas away too, as before the node is removed; not only the leaders.")
    ] = True


@operation(
    "POST /v1/nodes/{node}/resume",
    tag="cluster",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=_NODE_ERRORS,
    misnamed=errors.InvalidRequest,
    is_early=True,
)
class ResumeNode(Request[Plan], frozen=True, kw_only=True):
    """Use a node again that was drained."""

    node: NodeId


@operation(
    "DELETE /v1/nodes/{node}",
    tag="cluster",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=_NODE_ERRORS,
    misnamed=errors.InvalidRequest,
    is_early=True,
)
class RemoveNode(Request[None], frozen=True, kw_only=True):
    """Let a node go for good, once it has no replicas any more."""

    node: NodeId
    force: Annotated[bool, Meta(description="Although it has replicas, which then are as many fewer.")] = False


@operation(
    "POST /v1/topics/{topic}/reassign",
    tag="cluster",
    needs=_CHANGE,
    repeat=Repeat.SAME,
    errors=(*_NODE_ERRORS, errors.UnknownTopic),
    also={207: _is_partly},
    body_max=limits.SMALL_BODY_BYTES_MAX,
    is_early=True,
)
class ReassignTopic(Request[OutcomeList], frozen=True, kw_only=True):
    """Send a topic's replicas to other nodes. It is answered at once; /v1/reassignments tells how far they got.

    Exactly one of `moves`, `nodes` and `cancel` says where they are to be.
    """

    topic: TopicName
    moves: Annotated[list[MoveRequest], Meta(min_length=1, max_length=limits.PARTITIONS_MAX)] | None = None
    nodes: Annotated[NodeIds | None, Meta(description="Spread all partitions over these nodes in turn.")] = None
    replication_factor: Annotated[
        Annotated[int, Meta(ge=1, le=limits.NODES_LISTED_MAX)] | None,
        Meta(description="With `nodes`: how many replicas each partition is to have; default: as many as now."),
    ] = None
    cancel: Annotated[bool, Meta(description="Call off every move of the topic that is under way.")] = False
