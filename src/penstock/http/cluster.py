"""The cluster over REST: its quorum and nodes looked at, nodes drained and let go, leaders moved."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock.broker.reports import NodeReport, gather_reports
from penstock.cluster.commands import (
    DrainNode,
    ElectLeaders,
    Move,
    Outcomes,
    Planned,
    Rebalance,
    RemoveNode,
    TransferControl,
)
from penstock.cluster.records import NO_LEADER, NodeRegistered, PartitionAssigned
from penstock.errors import InvalidRequest, NodeNotFound
from penstock.http.admin import EndpointView
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, no_content
from penstock.http.groups import PlaceView
from penstock.http.message_types import PartitionIndex
from penstock.http.outcomes import OutcomeList, outcomes_of

_LISTED_MAX = 1_000

NodeStatus = Literal["up", "draining", "fenced"]
Role = Literal["leader", "voter", "learner"]


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


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    replicas: Annotated[
        bool, Meta(description="Move the replicas away too, as before the node is removed; not only the leaders.")
    ] = True


class RemoveQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    force: Annotated[bool, Meta(description="Although it has replicas, which then are as many fewer.")] = False


class RebalanceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dry_run: Annotated[bool, Meta(description="Only tell what would be moved.")] = False


class TransferRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node_id: Annotated[int | None, Meta(description="The voter to lead the quorum; without it, any other.")] = None


class PlaceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    partition: PartitionIndex


class ElectRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    partitions: Annotated[
        list[PlaceRequest] | None, Meta(description="Without it, all that are not led by their preferred replica.")
    ] = None
    unclean: Annotated[
        bool, Meta(description="Let any living replica lead where nobody in sync can. What it lacks is lost.")
    ] = False


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


# -- looking -----------------------------------------------------------------------------------------------------------


async def cluster_status(door: Door, _call: Call[None, None]) -> ClusterStatus:
    """The quorum, the nodes, and the partitions that lack something."""
    broker = door.broker
    metadata, quorum = broker.metadata, broker.quorum
    reports = await gather_reports(broker, sorted({*metadata.nodes, *quorum.members.voters, *quorum.members.learners}))
    places = [(topic.name, assigned) for topic in metadata.topics.values() for assigned in topic.partitions]
    lacking = [place for place in places if is_under_replicated(place[1])]
    leaderless = [place for place in places if place[1].leader == NO_LEADER]
    lossy = [place for place in places if place[1].lost]
    return ClusterStatus(
        cluster_id=metadata.cluster_id,
        controller=quorum.leader_id,
        term=quorum.term,
        metadata_index=quorum.applied_index,
        quorum=_quorum(door, reports),
        nodes=_nodes(door, reports),
        topics=len(metadata.topics),
        partitions=len(places),
        under_replicated=len(lacking),
        leaderless=len(leaderless),
        moving=sum(is_moving(assigned) for _, assigned in places),
        under_replicated_partitions=_listed(lacking),
        leaderless_partitions=_listed(leaderless),
        lossy=len(lossy),
        lossy_partitions=_listed(lossy),
    )


async def list_nodes(door: Door, _call: Call[None, None]) -> NodeList:
    """Every node of the cluster."""
    return NodeList(nodes=_nodes(door, await gather_reports(door.broker, sorted(door.broker.metadata.nodes))))


def is_moving(assigned: PartitionAssigned) -> bool:
    """Whether its replicas are on their way to other nodes."""
    return bool(assigned.adding or assigned.removing)


def is_under_replicated(assigned: PartitionAssigned) -> bool:
    """Whether a replica that is to stay, or was there before, is not in sync."""
    return any(node_id not in assigned.in_sync for node_id in assigned.replicas if node_id not in assigned.adding)


def _listed(places: list[tuple[str, PartitionAssigned]]) -> list[PlaceView]:
    return [PlaceView(topic=topic, partition=assigned.partition) for topic, assigned in places[:_LISTED_MAX]]


def _quorum(door: Door, reports: dict[int, NodeReport]) -> list[QuorumMemberView]:
    quorum = door.broker.quorum
    leader = reports.get(-1 if quorum.leader_id is None else quorum.leader_id)
    end = quorum.applied_index if leader is None else leader.applied_index
    views = []
    for node_id in sorted({*quorum.members.voters, *quorum.members.learners}):
        role: Role = "voter" if node_id in quorum.members.voters else "learner"
        report = reports.get(node_id)
        applied = None if report is None else report.applied_index
        views.append(
            QuorumMemberView(
                node_id=node_id,
                role="leader" if node_id == quorum.leader_id else role,
                applied_index=applied,
                lag=None if applied is None else max(end - applied, 0),
            )
        )
    return views


def _nodes(door: Door, reports: dict[int, NodeReport]) -> list[ClusterNodeView]:
    metadata = door.broker.metadata
    assigned = [partition for topic in metadata.topics.values() for partition in topic.partitions]
    leaders = Counter(partition.leader for partition in assigned)
    replicas = Counter(node_id for partition in assigned for node_id in partition.replicas)
    return [
        _node(node, leaders[node_id], replicas[node_id], reports.get(node_id))
        for node_id, node in sorted(metadata.nodes.items())
    ]


def status_of_node(node: NodeRegistered) -> NodeStatus:
    return "fenced" if node.is_fenced else "draining" if node.is_draining else "up"


def _node(node: NodeRegistered, leaders: int, replicas: int, report: NodeReport | None) -> ClusterNodeView:
    return ClusterNodeView(
        node_id=node.node_id,
        status=status_of_node(node),
        epoch=node.epoch,
        rack=node.rack,
        endpoints=[EndpointView(door=at.door, host=at.host, port=at.port) for at in node.endpoints],
        leaders=leaders,
        replicas=replicas,
        version=None if report is None else report.version,
        size_bytes=None if report is None else report.size_bytes,
        disk_free_bytes=None if report is None else report.disk_free_bytes,
        disk_total_bytes=None if report is None else report.disk_total_bytes,
        corrupt_bytes=None if report is None else report.corrupt_bytes,
        scrubbed_at_ms=None if report is None else report.scrubbed_at_ms,
    )


# -- changing ----------------------------------------------------------------------------------------------------------


async def drain_node(door: Door, call: Call[DrainRequest, None]) -> Plan:
    """Give what a node leads, and its replicas, to other nodes; it gets nothing new until it is resumed."""
    command = DrainNode(node_id=_node_id(door, call), is_draining=True, with_replicas=call.body.replicas)
    return _plan(await door.broker.controller.submit(command), is_dry=False)


async def resume_node(door: Door, call: Call[None, None]) -> Plan:
    """Use a node again that was drained."""
    command = DrainNode(node_id=_node_id(door, call), is_draining=False)
    return _plan(await door.broker.controller.submit(command), is_dry=False)


async def remove_node(door: Door, call: Call[None, RemoveQuery]) -> Reply:
    """Let a node go for good, once it has no replicas any more."""
    await door.broker.controller.submit(RemoveNode(node_id=_node_id(door, call), is_forced=call.query.force))
    return no_content()


async def rebalance(door: Door, call: Call[RebalanceRequest, None]) -> Plan:
    """Spread replicas and leaders evenly over the nodes and racks."""
    answer = await door.broker.controller.submit(Rebalance(is_only_planned=call.body.dry_run))
    return _plan(answer, is_dry=call.body.dry_run)


async def transfer(door: Door, call: Call[TransferRequest, None]) -> Transferred:
    """Hand the lead of the quorum to another voter."""
    node_id = call.body.node_id
    if node_id is not None and node_id not in door.broker.metadata.nodes:
        raise NodeNotFound(f"There is no node {node_id} in the cluster.")
    await door.broker.controller.submit(TransferControl(node_id=node_id))
    return Transferred(controller=door.broker.quorum.leader_id)


async def elect_leaders(door: Door, call: Call[ElectRequest, None]) -> OutcomeList | Reply:
    """Give partitions back to their preferred leaders."""
    body = call.body
    places = None if body.partitions is None else tuple((place.topic, place.partition) for place in body.partitions)
    answer = await door.broker.controller.submit(ElectLeaders(partitions=places, is_unclean=body.unclean))
    assert isinstance(answer, Outcomes), "that is what it answers"
    return outcomes_of(answer, call.path, hides_needless=places is None)


def _node_id(door: Door, call: Call[Any, Any]) -> int:
    text: str = call.scope["path_params"]["node"]
    if not text.isdecimal():
        raise InvalidRequest(f"Nodes have numbers, such as 3; {text!r} is none.")
    node_id = int(text)
    if node_id not in door.broker.metadata.nodes:
        raise NodeNotFound(f"There is no node {node_id} in the cluster.")
    return node_id


def _plan(answer: object, *, is_dry: bool) -> Plan:
    moves: tuple[Move, ...] = answer.moves if isinstance(answer, Planned) else ()
    stuck = answer.stuck if isinstance(answer, Planned) else ()
    return Plan(
        dry_run=is_dry,
        moves=[
            PlannedMove(topic=move.topic, partition=move.partition, replicas=list(move.replicas or ()))
            for move in moves
        ],
        stuck=[StuckView(topic=each.topic, partition=each.partition, reason=each.reason) for each in stuck],
    )
