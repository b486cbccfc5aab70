"""AlterPartitionReassignments, ListPartitionReassignments, ElectLeaders, DescribeQuorum."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from penstock import errors
from penstock.broker.broker import Broker
from penstock.broker.reports import NodeReport, gather_reports
from penstock.cluster.commands import ElectLeaders, Move, Outcome, Outcomes, Reassign
from penstock.errors import (
    ElectionNotNeeded,
    InvalidReplicationFactor,
    InvalidRequest,
    LeaderNotAvailable,
    PenstockError,
)
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol import placement_messages as wire
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.schema import NO_UUID

_PREFERRED, _UNCLEAN = range(2)
_FIRST_STRICT_VERSION: Final = 1  # from here on a change of the number of replicas can be forbidden
_METADATA_TOPIC: Final = "__cluster_metadata"  # how Kafka calls the quorum's log
_TIMEOUT_SECONDS_MAX: Final = 60.0

Coded = tuple[ErrorCode, str | None]


def _timeout_s(timeout_ms: int) -> float:
    return min(max(timeout_ms / 1000, 1.0), _TIMEOUT_SECONDS_MAX)


def _coded(outcome: Outcome, code_of: Callable[[PenstockError], ErrorCode] = error_code) -> Coded:
    if outcome.error is None:
        return ErrorCode.NONE, None
    kind: type[PenstockError] = getattr(errors, outcome.error, PenstockError)
    return code_of(kind(outcome.message)), outcome.message


# -- AlterPartitionReassignments ---------------------------------------------------------------------------------------


async def alter_reassignments(
    exchange: Exchange, request: wire.AlterPartitionReassignmentsRequest
) -> wire.AlterPartitionReassignmentsResponse:
    """Versions 0 and 1. From 1 on the number of replicas can be kept from changing (KIP-860)."""
    may_resize = exchange.version < _FIRST_STRICT_VERSION or request.allow_replication_factor_change
    results: dict[tuple[str, int], Coded] = {}
    moves: list[Move] = []
    for topic in request.topics:
        for row in topic.partitions:
            move = Move(topic=topic.name, partition=row.partition_index, replicas=row.replicas)
            refusal = None if may_resize else _resizes(exchange.broker, move)
            if refusal is None:
                moves.append(move)
            else:
                results[topic.name, row.partition_index] = (error_code(refusal), refusal.message)
    try:
        if moves:
            command = Reassign(moves=tuple(moves))
            answer = await exchange.broker.controller.submit(command, timeout_s=_timeout_s(request.timeout_ms))
            assert isinstance(answer, Outcomes), "that is what it answers"
            results |= {(outcome.topic, outcome.partition): _coded(outcome) for outcome in answer.outcomes}
    except PenstockError as error:
        return wire.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_code=error_code(error),
            error_message=error.message,
            responses=(),
        )
    return wire.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        responses=tuple(
            wire.ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _reassigned(row.partition_index, results[topic.name, row.partition_index])
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _reassigned(index: int, coded: Coded) -> wire.ReassignablePartitionResponse:
    return wire.ReassignablePartitionResponse(partition_index=index, error_code=coded[0], error_message=coded[1])


def _resizes(broker: Broker, move: Move) -> InvalidReplicationFactor | None:
    """Why a move is refused that would leave a partition with more or fewer replicas than it has."""
    topic = broker.metadata.topics.get(move.topic)
    if topic is None or move.replicas is None or not 0 <= move.partition < len(topic.partitions):
        return None  # the controller says what there is to say
    present = topic.partitions[move.partition]
    count = len(present.replicas) - len(present.adding)
    if len(move.replicas) == count:
        return None
    return InvalidReplicationFactor(
        f"{move.topic}-{move.partition} has {count} replicas, and the request keeps that from changing to "
        f"{len(move.replicas)}."
    )


# -- ListPartitionReassignments ----------------------------------------------------------------------------------------


def list_reassignments(
    exchange: Exchange, request: wire.ListPartitionReassignmentsRequest
) -> wire.ListPartitionReassignmentsResponse:
    """Version 0. Partitions that are not moving, or not there, are left out."""
    known = exchange.broker.metadata.topics
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topics is None:
        wanted = [(name, range(len(topic.partitions))) for name, topic in known.items()]
    else:
        wanted = [(topic.name, topic.partition_indexes) for topic in request.topics if topic.name in known]
    moving = []
    for name, indexes in wanted:
        rows = [known[name].partitions[index] for index in indexes if 0 <= index < len(known[name].partitions)]
        ongoing = tuple(
            wire.OngoingPartitionReassignment(
                partition_index=row.partition,
                replicas=row.replicas,
                adding_replicas=row.adding,
                removing_replicas=row.removing,
            )
            for row in rows
            if row.adding or row.removing
        )
        if ongoing:
            moving.append(wire.OngoingTopicReassignment(name=name, partitions=ongoing))
    return wire.ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE, topics=tuple(moving))


# -- ElectLeaders ------------------------------------------------------------------------------------------------------


async def elect_leaders(exchange: Exchange, request: wire.ElectLeadersRequest) -> wire.ElectLeadersResponse:
    """Versions 0 to 2. From 1 on unclean elections can be asked for too (KIP-460)."""
    asked = request.topic_partitions
    is_unclean = request.election_type == _UNCLEAN
    places = None
    if asked is not None:
        places = tuple((topic.topic, index) for topic in asked for index in topic.partitions)
    try:
        if request.election_type not in (_PREFERRED, _UNCLEAN):
            raise InvalidRequest(f"Elections of type {request.election_type} are not known: 0 preferred, 1 unclean.")
        command = ElectLeaders(partitions=places, is_unclean=is_unclean)
        answer = await exchange.broker.controller.submit(command, timeout_s=_timeout_s(request.timeout_ms))
        assert isinstance(answer, Outcomes), "that is what it answers"
    except PenstockError as error:
        return wire.ElectLeadersResponse(error_code=error_code(error), replica_election_results=())

    def code_of(error: PenstockError) -> ErrorCode:
        if isinstance(error, LeaderNotAvailable):
            unclean, preferred = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            return unclean if is_unclean else preferred
        return error_code(error)

    topics: dict[str, list[wire.PartitionResult]] = {}
    for outcome in answer.outcomes:
        if places is None and outcome.error == ElectionNotNeeded.__name__:
            continue  # where everything was meant, only what was done is told
        code, message = _coded(outcome, code_of)
        row = wire.PartitionResult(partition_id=outcome.partition, error_code=code, error_message=message)
        topics.setdefault(outcome.topic, []).append(row)
    return wire.ElectLeadersResponse(
        error_code=ErrorCode.NONE,
        replica_election_results=tuple(
            wire.ReplicaElectionResult(topic=name, partition_result=tuple(rows)) for name, rows in topics.items()
        ),
    )


# -- DescribeQuorum ----------------------------------------------------------------------------------------------------


async def describe_quorum(exchange: Exchange, request: wire.DescribeQuorumRequest) -> wire.DescribeQuorumResponse:
    """Versions 0 to 2. Offsets are the indexes of entries that a member has applied; -1 if it does not answer."""
    broker = exchange.broker
    members = broker.quorum.members
    reports = await gather_reports(broker, sorted({*members.voters, *members.learners}))
    return wire.DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        topics=tuple(
            wire.DescribedQuorumTopic(
                topic_name=topic.topic_name,
                partitions=tuple(
                    _quorum(broker, row.partition_index, reports, is_known=topic.topic_name == _METADATA_TOPIC)
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        ),
        nodes=tuple(
            wire.QuorumNode(
                node_id=node_id,
                listeners=tuple(
                    wire.QuorumListener(name=at.door.upper(), host=at.host, port=at.port)
                    for at in broker.metadata.nodes[node_id].endpoints
                    if at.door == "internal"
                ),
            )
            for node_id in sorted(members.voters)
            if node_id in broker.metadata.nodes
        ),
    )


def _quorum(
    broker: Broker, index: int, reports: dict[int, NodeReport], *, is_known: bool
) -> wire.DescribedQuorumPartition:
    quorum = broker.quorum
    code = ErrorCode.NONE
    if not is_known or index != 0:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif quorum.leader_id is None:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    leader = reports.get(-1 if quorum.leader_id is None else quorum.leader_id)
    end = quorum.applied_index if leader is None else leader.applied_index
    now_ms = broker.clock.now_ms()

    def state(node_id: int, directory_id: str) -> wire.ReplicaState:
        report = reports.get(node_id)
        applied = -1 if report is None else report.applied_index
        return wire.ReplicaState(
            replica_id=node_id,
            replica_directory_id=_uuid(directory_id),
            log_end_offset=applied,
            last_fetch_timestamp=-1 if report is None else now_ms,
            last_caught_up_timestamp=now_ms if applied >= end else -1,
        )

    is_told = code is ErrorCode.NONE
    return wire.DescribedQuorumPartition(
        partition_index=index,
        error_code=code,
        leader_id=-1 if quorum.leader_id is None else quorum.leader_id,
        leader_epoch=quorum.term,
        high_watermark=end,
        current_voters=tuple(state(*item) for item in sorted(quorum.members.voters.items())) if is_told else (),
        observers=tuple(state(*item) for item in sorted(quorum.members.learners.items())) if is_told else (),
    )


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return NO_UUID


HANDLERS = (
    Handler(wire.AlterPartitionReassignmentsRequest, alter_reassignments),
    Handler(wire.ListPartitionReassignmentsRequest, list_reassignments),
    Handler(wire.ElectLeadersRequest, elect_leaders),
    Handler(wire.DescribeQuorumRequest, describe_quorum),
)
