"""Replicas on their way from node to node, over REST: sent, called off, and how far they got."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.broker.remote import Extent, Where
from penstock.cluster.commands import Move, Outcomes, Reassign
from penstock.cluster.metadata import Topic
from penstock.cluster.records import NO_LEADER, PartitionAssigned
from penstock.errors import InvalidRequest, NodeNotFound
from penstock.http.cluster import is_moving
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply
from penstock.http.message_types import PartitionIndex
from penstock.http.outcomes import OutcomeList, outcomes_of

NodeIds = Annotated[list[int], Meta(min_length=1, max_length=1_000)]


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    partition: PartitionIndex
    replicas: Annotated[NodeIds | None, Meta(description="The preferred leader first; null calls a move off.")]


class ReassignRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a topic's replicas are to be: exactly one of `moves`, `nodes` and `cancel`."""

    moves: Annotated[list[MoveRequest], Meta(min_length=1, max_length=10_000)] | None = None
    nodes: Annotated[NodeIds | None, Meta(description="Spread all partitions over these nodes in turn.")] = None
    replication_factor: Annotated[
        Annotated[int, Meta(ge=1, le=1_000)] | None,
        Meta(description="With `nodes`: how many replicas each partition is to have; default: as many as now."),
    ] = None
    cancel: Annotated[bool, Meta(description="Call off every move of the topic that is under way.")] = False


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


async def reassign_topic(door: Door, call: Call[ReassignRequest, None]) -> OutcomeList | Reply:
    """Send a topic's replicas to other nodes. It is answered at once; /v1/reassignments tells how far they got."""
    topic = door.broker.metadata.topic(call.topic)
    moves = _moves(door, topic, call.body)
    if not moves:
        return OutcomeList(outcomes=[])
    answer = await door.broker.controller.submit(Reassign(moves=moves))
    assert isinstance(answer, Outcomes), "that is what it answers"
    return outcomes_of(answer, call.path)


def _moves(door: Door, topic: Topic, body: ReassignRequest) -> tuple[Move, ...]:
    if sum((body.moves is not None, body.nodes is not None, body.cancel)) != 1:
        raise InvalidRequest("Give one of `moves`, `nodes` and `cancel`.")
    if body.replication_factor is not None and body.nodes is None:
        raise InvalidRequest("`replication_factor` goes with `nodes`.")
    if body.cancel:
        moving = [assigned.partition for assigned in topic.partitions if is_moving(assigned)]
        return tuple(Move(topic=topic.name, partition=index, replicas=None) for index in moving)
    if body.nodes is not None:
        return _spread(door, topic, body.nodes, body.replication_factor or topic.replication_factor)
    assert body.moves is not None, "one of the three is given"
    return tuple(
        Move(
            topic=topic.name,
            partition=move.partition,
            replicas=None if move.replicas is None else tuple(move.replicas),
        )
        for move in body.moves
    )


def _spread(door: Door, topic: Topic, nodes: list[int], factor: int) -> tuple[Move, ...]:
    """Every partition on the next nodes in turn, so that each leads and holds about as many as the others."""
    for node_id in nodes:
        if node_id not in door.broker.metadata.nodes:
            raise NodeNotFound(f"There is no node {node_id} in the cluster.")
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


async def list_reassignments(door: Door, _call: Call[None, None]) -> ReassignmentList:
    """Every partition whose replicas are moving, and how much they lack."""
    moving = {
        (topic.name, assigned.partition): assigned
        for _, topic in sorted(door.broker.metadata.topics.items())
        for assigned in topic.partitions
        if is_moving(assigned)
    }
    asked = {
        where: [node_id for node_id in (assigned.leader, *assigned.adding) if node_id != NO_LEADER]
        for where, assigned in moving.items()
    }
    found = await door.broker.remote.extents_at(asked) if asked else {}
    return ReassignmentList(reassignments=[_view(where, assigned, found) for where, assigned in moving.items()])


def _view(where: Where, assigned: PartitionAssigned, found: dict[tuple[Where, int], Extent]) -> ReassignmentView:
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
