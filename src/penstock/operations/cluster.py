"""Serves the cluster: its quorum and nodes looked at, nodes drained and let go, replicas and leaders moved."""

from __future__ import annotations

from collections import Counter
from typing import Final

from penstock import errors
from penstock.api.cluster import (
    ClusterNodeView,
    ClusterStatus,
    ClusterView,
    DescribeCluster,
    DescribeMembers,
    DrainNode,
    ElectLeaders,
    EndpointView,
    ListNodes,
    ListReassignments,
    NodeList,
    NodeStatus,
    NodeView,
    OutcomeList,
    OutcomeView,
    PlaceView,
    Plan,
    PlannedMove,
    QuorumMemberView,
    ReassignmentList,
    ReassignmentView,
    ReassignTopic,
    Rebalance,
    RemoveNode,
    ResumeNode,
    Role,
    StuckView,
    TransferControl,
    Transferred,
)
from penstock.api.problems import problem_of
from penstock.broker.reports import NodeReport, gather_reports
from penstock.consensus import commands
from penstock.consensus.commands import Move, Outcome, Outcomes, Planned
from penstock.consensus.metadata import Topic
from penstock.consensus.records import NO_LEADER, NodeRegistered, PartitionAssigned
from penstock.errors import InvalidRequest, NodeNotFound, PenstockError
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import serves
from penstock.partitions.access import Extent, Where

_LISTED_MAX: Final = 1_000

# -- looking -----------------------------------------------------------------------------------------------------------


@serves(DescribeCluster)
async def describe_cluster(services: Services, _request: DescribeCluster, _caller: Caller) -> ClusterStatus:
    broker = services.broker
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
        quorum=_quorum(services, reports),
        nodes=_nodes(services, reports),
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


@serves(ListNodes)
async def list_nodes(services: Services, _request: ListNodes, _caller: Caller) -> NodeList:
    return NodeList(nodes=_nodes(services, await gather_reports(services.broker, sorted(services.metadata.nodes))))


def is_moving(assigned: PartitionAssigned) -> bool:
    """Whether its replicas are on their way to other nodes."""
    return bool(assigned.adding or assigned.removing)


def is_under_replicated(assigned: PartitionAssigned) -> bool:
    """Whether a replica that is to stay, or was there before, is not in sync."""
    return any(node_id not in assigned.in_sync for node_id in assigned.replicas if node_id not in assigned.adding)


def _listed(places: list[tuple[str, PartitionAssigned]]) -> list[PlaceView]:
    return [PlaceView(topic=topic, partition=assigned.partition) for topic, assigned in places[:_LISTED_MAX]]


def _quorum(services: Services, reports: dict[int, NodeReport]) -> list[QuorumMemberView]:
    quorum = services.quorum
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


def _nodes(services: Services, reports: dict[int, NodeReport]) -> list[ClusterNodeView]:
    metadata = services.metadata
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


@serves(DescribeMembers)
async def describe_members(services: Services, _request: DescribeMembers, _caller: Caller) -> ClusterView:
    metadata = services.metadata
    assignments = [assigned for topic in metadata.topics.values() for assigned in topic.partitions]
    return ClusterView(
        cluster_id=metadata.cluster_id,
        controller=services.quorum.leader_id,
        nodes=[
            NodeView(
                node_id=node.node_id,
                epoch=node.epoch,
                rack=node.rack,
                endpoints=[EndpointView(door=at.door, host=at.host, port=at.port) for at in node.endpoints],
            )
            for node in metadata.nodes.values()
        ],
        topics=len(metadata.topics),
        partitions=len(assignments),
        partitions_without_leader=sum(assigned.leader == NO_LEADER for assigned in assignments),
        metadata_version=metadata.version,
    )


# -- changing ----------------------------------------------------------------------------------------------------------


@serves(DrainNode)
async def drain_node(services: Services, request: DrainNode, _caller: Caller) -> Plan:
    _check_node(services, request.node)
    command = commands.DrainNode(node_id=request.node, is_draining=True, with_replicas=request.replicas)
    return _plan(await services.controller.submit(command), is_dry=False)


@serves(ResumeNode)
async def resume_node(services: Services, request: ResumeNode, _caller: Caller) -> Plan:
    _check_node(services, request.node)
    command = commands.DrainNode(node_id=request.node, is_draining=False)
    return _plan(await services.controller.submit(command), is_dry=False)


@serves(RemoveNode)
async def remove_node(services: Services, request: RemoveNode, _caller: Caller) -> None:
    _check_node(services, request.node)
    await services.controller.submit(commands.RemoveNode(node_id=request.node, is_forced=request.force))


@serves(Rebalance)
async def rebalance(services: Services, request: Rebalance, _caller: Caller) -> Plan:
    answer = await services.controller.submit(commands.Rebalance(is_only_planned=request.dry_run))
    return _plan(answer, is_dry=request.dry_run)


@serves(TransferControl)
async def transfer_control(services: Services, request: TransferControl, _caller: Caller) -> Transferred:
    if request.node_id is not None:
        _check_node(services, request.node_id)
    await services.controller.submit(commands.TransferControl(node_id=request.node_id))
    return Transferred(controller=services.quorum.leader_id)


@serves(ElectLeaders)
async def elect_leaders(services: Services, request: ElectLeaders, caller: Caller) -> OutcomeList:
    wanted = request.partitions
    places = None if wanted is None else tuple((place.topic, place.partition) for place in wanted)
    answer = await services.controller.submit(commands.ElectLeaders(partitions=places, is_unclean=request.unclean))
    assert isinstance(answer, Outcomes), "that is what it answers"
    return _outcomes_of(answer, caller.instance, hides_needless=places is None)


def _check_node(services: Services, node_id: int) -> None:
    if node_id not in services.metadata.nodes:
        raise NodeNotFound(f"There is no node {node_id} in the cluster.")


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


# -- reassignments -----------------------------------------------------------------------------------------------------


@serves(ReassignTopic)
async def reassign_topic(services: Services, request: ReassignTopic, caller: Caller) -> OutcomeList:
    moves = _moves(services, services.metadata.topic(request.topic), request)
    if not moves:
        return OutcomeList(outcomes=[])
    answer = await services.controller.submit(commands.Reassign(moves=moves))
    assert isinstance(answer, Outcomes), "that is what it answers"
    return _outcomes_of(answer, caller.instance)


def _moves(services: Services, topic: Topic, request: ReassignTopic) -> tuple[Move, ...]:
    if sum((request.moves is not None, request.nodes is not None, request.cancel)) != 1:
        raise InvalidRequest("Give one of `moves`, `nodes` and `cancel`.")
    if request.replication_factor is not None and request.nodes is None:
        raise InvalidRequest("`replication_factor` goes with `nodes`.")
    if request.cancel:
        moving = [assigned.partition for assigned in topic.partitions if is_moving(assigned)]
        return tuple(Move(topic=topic.name, partition=index, replicas=None) for index in moving)
    if request.nodes is not None:
        return _spread(services, topic, request.nodes, request.replication_factor or topic.replication_factor)
    assert request.moves is not None, "one of the three is given"
    return tuple(
        Move(
            topic=topic.name,
            partition=move.partition,
            replicas=None if move.replicas is None else tuple(move.replicas),
        )
        for move in request.moves
    )


def _spread(services: Services, topic: Topic, nodes: list[int], factor: int) -> tuple[Move, ...]:
    """Every partition on the next nodes in turn, so that each leads and holds about as many as the others."""
    for node_id in nodes:
        _check_node(services, node_id)
    if len(set(nodes)) < len(nodes) or factor > len(nodes):
        raise InvalidRequest(f"{factor} replicas of a partition need {factor} nodes, each named once.")
    return tuple(
        Move(
            topic=topic.name,
            partition=index,
            replicas=tuple(nodes[(index + turn) % len(nodes)] for turn in range(factor)),
        )
        for index in range(len(topic.partitions))
    )


@serves(ListReassignments)
async def list_reassignments(services: Services, _request: ListReassignments, _caller: Caller) -> ReassignmentList:
    moving = {
        (topic.name, assigned.partition): assigned
        for _, topic in sorted(services.metadata.topics.items())
        for assigned in topic.partitions
        if is_moving(assigned)
    }
    asked = {
        where: [node_id for node_id in (assigned.leader, *assigned.adding) if node_id != NO_LEADER]
        for where, assigned in moving.items()
    }
    found = await services.partitions.extents_at(asked) if asked else {}
    return ReassignmentList(
        reassignments=[_reassignment_view(where, assigned, found) for where, assigned in moving.items()]
    )


def _reassignment_view(
    where: Where, assigned: PartitionAssigned, found: dict[tuple[Where, int], Extent]
) -> ReassignmentView:
    leader = found.get((where, assigned.leader))
    messages: int | None = 0
    size_bytes: int | None = 0
    for node_id in assigned.adding:
        extent = found.get((where, node_id))
        if extent is None or leader is None or messages is None or size_bytes is None:
            messages = size_bytes = None
            break
        messages += max(leader.log_end_offset - max(extent.log_end_offset, leader.log_start_offset), 0)
        size_bytes += max(leader.size_bytes - extent.size_bytes, 0)
    return ReassignmentView(
        topic=where[0],
        partition=where[1],
        leader=assigned.leader,
        replicas=[node_id for node_id in assigned.replicas if node_id not in assigned.removing],
        adding=list(assigned.adding),
        removing=list(assigned.removing),
        messages_left=messages,
        bytes_left=size_bytes,
    )


# -- outcomes, partition by partition ----------------------------------------------------------------------------------


def _outcomes_of(answer: Outcomes, path: str, *, hides_needless: bool = False) -> OutcomeList:
    """What became of each partition; the first one's error where nothing was granted.

    ``hides_needless`` leaves out the partitions of which nothing was wanted in particular, and that need nothing.
    """
    told = [(outcome, _error_of(outcome)) for outcome in answer.outcomes]
    if hides_needless:
        told = [(outcome, error) for outcome, error in told if not isinstance(error, errors.ElectionNotNeeded)]
    refusals = [error for _, error in told if error is not None]
    if refusals and len(refusals) == len(told):
        raise refusals[0]
    return OutcomeList(outcomes=[_outcome_view(outcome, error, path) for outcome, error in told])


def _error_of(outcome: Outcome) -> PenstockError | None:
    """The error that an outcome names."""
    if outcome.error is None:
        return None
    kind: type[PenstockError] = getattr(errors, outcome.error, PenstockError)
    return kind(outcome.message)


def _outcome_view(outcome: Outcome, error: PenstockError | None, path: str) -> OutcomeView:
    assigned = outcome.assigned
    return OutcomeView(
        topic=outcome.topic,
        partition=outcome.partition,
        leader=None if assigned is None else assigned.leader,
        replicas=None if assigned is None else list(assigned.replicas),
        adding=None if assigned is None else list(assigned.adding),
        removing=None if assigned is None else list(assigned.removing),
        error=None if error is None else problem_of(error, path),
    )
