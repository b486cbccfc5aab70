"""ApiVersions, Metadata and what else clients and tools ask and change of nodes, features, replicas and leaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from penstock import errors
from penstock.access.acls import AclAction, AclResource
from penstock.broker.broker import Broker
from penstock.broker.reports import NodeReport, gather_reports
from penstock.consensus.commands import ElectLeaders, Move, Outcome, Outcomes, Reassign
from penstock.consensus.metadata import Topic
from penstock.consensus.records import NO_LEADER, PartitionAssigned
from penstock.doors.kafka.caller import Caller
from penstock.doors.kafka.errors import election_error_code, error_code
from penstock.doors.kafka.handler import Handler, RequestContext
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import cluster as wire
from penstock.doors.kafka.protocol.messages.shared import NOT_REQUESTED
from penstock.doors.kafka.protocol.schema import NO_UUID, Api
from penstock.errors import ElectionNotNeeded, InvalidReplicationFactor, InvalidRequest, PenstockError
from penstock.model import is_internal

_BROKER_ENDPOINTS: Final = 1
_PARTITIONS_MAX: Final = 2_000  # in one answer; Kafka's max.request.partition.size.limit
_FIRST_VERSION_WITHOUT_RESULTS: Final = 2
_PREFERRED, _UNCLEAN = range(2)
_FIRST_STRICT_VERSION: Final = 1  # from here on a change of the number of replicas can be forbidden
_METADATA_TOPIC: Final = "__cluster_metadata"  # Kafka's name of the quorum's log
_TIMEOUT_SECONDS_MAX: Final = 60.0

_CodeAndMessage = tuple[ErrorCode, str | None]


class Feature(NamedTuple):
    """A feature with its lowest level, and the one in force, which is also the highest (KIP-584)."""

    name: str
    lowest: int
    level: int


# Producers use the second protocol of transactions only where the cluster has agreed on it (KIP-890).
FEATURES: Final = (Feature("transaction.version", 0, 2),)
_FEATURES_EPOCH: Final = 1  # of the agreement; it has never changed


# -- ApiVersions -------------------------------------------------------------------------------------------------------


def api_versions(offered: Iterable[Api], code: ErrorCode) -> wire.ApiVersionsResponse:
    """Versions 0 to 4: the APIs and the features that clients may use."""
    return wire.ApiVersionsResponse(
        error_code=code,
        api_keys=tuple(
            wire.ApiVersion(api_key=api.key, min_version=api.first, max_version=api.last) for api in offered
        ),
        supported_features=tuple(
            wire.SupportedFeatureKey(name=name, min_version=lowest, max_version=level)
            for name, lowest, level in FEATURES
        ),
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=tuple(
            wire.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, _, level in FEATURES
        ),
    )


# -- Metadata, DescribeCluster -----------------------------------------------------------------------------------------


async def metadata(context: RequestContext, request: wire.MetadataRequest) -> wire.MetadataResponse:
    """Versions 0 to 12. An empty list means all topics in version 0, later null does. From 10 on also by id."""
    broker, caller = context.broker, context.caller
    asks_for_all = request.topics is None or (context.version == 0 and not request.topics)
    if asks_for_all:
        reachable = _reachable(broker)
        topics = [
            _describe(topic, reachable)
            for topic in broker.metadata.topics.values()
            if caller.may_topic(AclAction.DESCRIBE, topic.name)
        ]
    else:
        assert request.topics is not None
        may_create = request.allow_auto_topic_creation
        topics = [await _find_topic(context, wanted, may_create=may_create) for wanted in request.topics]
    return wire.MetadataResponse(
        brokers=tuple(
            wire.MetadataResponseBroker(node_id=node.node_id, host=host, port=port, rack=node.rack)
            for node in broker.known_nodes.listed()
            for host, port in [context.address_of(node)]
        ),
        cluster_id=broker.metadata.cluster_id,
        controller_id=_controller(broker),
        topics=tuple(
            (_with_operations(caller, topic) for topic in topics)
            if request.include_topic_authorized_operations
            else topics
        ),
        cluster_authorized_operations=(
            caller.cluster_operations() if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


def _with_operations(caller: Caller, topic: wire.MetadataResponseTopic) -> wire.MetadataResponseTopic:
    """What the client may do with a topic that there is."""
    if topic.error_code or topic.name is None:
        return topic
    operations = caller.operations(AclResource.TOPIC, topic.name)
    return msgspec.structs.replace(topic, topic_authorized_operations=operations)


def _reachable(broker: Broker) -> frozenset[int]:
    """The nodes that clients may be sent to. A node that has lost the cluster leaves itself out."""
    reachable = frozenset(node.node_id for node in broker.metadata.nodes.values() if not node.is_fenced)
    return reachable - {broker.config.node_id} if broker.replicas.is_isolated else reachable


def _controller(broker: Broker) -> int:
    """The quorum's leader, if clients may be sent there; every node takes requests for the controller."""
    leader_id = broker.quorum.leader_id
    return leader_id if leader_id is not None and leader_id in _reachable(broker) else -1


async def _find_topic(
    context: RequestContext, wanted: wire.MetadataRequestTopic, *, may_create: bool
) -> wire.MetadataResponseTopic:
    broker, caller = context.broker, context.caller
    if wanted.name is None or wanted.topic_id != NO_UUID:  # with an id, clients send any name, such as an empty one
        topic = broker.metadata.topic_by_id(wanted.topic_id)
        if topic is None:
            return _missing("" if context.version < 12 else None, wanted.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        if not caller.may_topic(AclAction.DESCRIBE, topic.name):  # its id is no secret, its name is
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return _missing("" if context.version < 12 else None, wanted.topic_id, code)
        return _describe(topic, _reachable(broker))
    if not caller.may_topic(AclAction.DESCRIBE, wanted.name):  # whether there is such a topic or not
        return _missing(wanted.name, NO_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    would_create = may_create and wanted.name not in broker.metadata.topics and broker.config.auto_create_topics
    if would_create and not _may_create(caller, wanted.name):
        return _missing(wanted.name, NO_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    try:
        topic = await broker.ensure_topic(wanted.name) if may_create else broker.metadata.topic(wanted.name)
        return _describe(topic, _reachable(broker))
    except PenstockError as error:
        return _missing(wanted.name, NO_UUID, error_code(error))


def _may_create(caller: Caller, name: str) -> bool:
    return caller.may_cluster(AclAction.CREATE) or caller.may_topic(AclAction.CREATE, name)


def _missing(name: str | None, topic_id: UUID, code: ErrorCode) -> wire.MetadataResponseTopic:
    return wire.MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=())


def _describe(topic: Topic, reachable: frozenset[int]) -> wire.MetadataResponseTopic:
    return wire.MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=tuple(_describe_partition(partition, reachable) for partition in topic.partitions),
    )


def _describe_partition(partition: PartitionAssigned, reachable: frozenset[int]) -> wire.MetadataResponsePartition:
    """A leader that clients cannot reach is left out: they ask again until there is one."""
    has_leader = partition.leader in reachable
    return wire.MetadataResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=partition.partition,
        leader_id=partition.leader if has_leader else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.in_sync,
        offline_replicas=tuple([node_id for node_id in partition.replicas if node_id not in reachable]),
    )


def describe_cluster(context: RequestContext, request: wire.DescribeClusterRequest) -> wire.DescribeClusterResponse:
    """Versions 0 and 1. Version 1 can ask for controllers instead of brokers, which are not reached separately here."""
    broker = context.broker
    if request.endpoint_type != _BROKER_ENDPOINTS:
        return wire.DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="This is a broker's address: ask for brokers.",
            cluster_id=broker.metadata.cluster_id,
            brokers=(),
        )
    reachable = [node for _, node in sorted(broker.metadata.nodes.items()) if not node.is_fenced]
    return wire.DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=broker.metadata.cluster_id,
        controller_id=_controller(broker),
        brokers=tuple(
            wire.DescribeClusterBroker(broker_id=node.node_id, host=host, port=port, rack=node.rack)
            for node in reachable
            for host, port in [context.address_of(node)]
        ),
        cluster_authorized_operations=(
            context.caller.cluster_operations() if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


# -- DescribeTopicPartitions -------------------------------------------------------------------------------------------


def describe_topic_partitions(
    context: RequestContext, request: wire.DescribeTopicPartitionsRequest
) -> wire.DescribeTopicPartitionsResponse:
    """Version 0. Topics by name, all if none is named, page by page: the cursor says where the next one begins."""
    broker, caller = context.broker, context.caller
    cursor = request.cursor
    names = sorted({topic.name for topic in request.topics} or broker.metadata.topics)
    refused = {name for name in names if not caller.may_topic(AclAction.DESCRIBE, name)}
    if not request.topics:
        names = [name for name in names if name not in refused]
    left = max(1, min(request.response_partition_limit, _PARTITIONS_MAX))
    reachable = _reachable(broker)
    topics: list[wire.DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if cursor is not None and name < cursor.topic_name:
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if not left:
            return wire.DescribeTopicPartitionsResponse(
                topics=tuple(topics), next_cursor=wire.Cursor(topic_name=name, partition_index=first)
            )
        topic = broker.metadata.topics.get(name) if name not in refused else None
        if topic is None:
            is_refused = name in refused
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_refused else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(wire.DescribeTopicPartitionsResponseTopic(error_code=code, name=name, partitions=()))
            continue
        page = topic.partitions[max(first, 0) : max(first, 0) + left]
        left -= len(page)
        topics.append(_describe_page(topic, page, reachable, caller))
        if page and page[-1].partition + 1 < len(topic.partitions):
            rest = wire.Cursor(topic_name=name, partition_index=page[-1].partition + 1)
            return wire.DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=rest)
    return wire.DescribeTopicPartitionsResponse(topics=tuple(topics))


def _describe_page(
    topic: Topic, page: Sequence[PartitionAssigned], reachable: frozenset[int], caller: Caller
) -> wire.DescribeTopicPartitionsResponseTopic:
    rows = []
    for partition in page:
        known = _describe_partition(partition, reachable)
        rows.append(
            wire.DescribeTopicPartitionsResponsePartition(
                error_code=known.error_code,
                partition_index=known.partition_index,
                leader_id=known.leader_id,
                leader_epoch=known.leader_epoch,
                replica_nodes=known.replica_nodes,
                isr_nodes=known.isr_nodes,
                eligible_leader_replicas=partition.eligible,
                last_known_elr=(),
                offline_replicas=known.offline_replicas,
            )
        )
    return wire.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=tuple(rows),
        topic_authorized_operations=caller.operations(AclResource.TOPIC, topic.name),
    )


# -- UpdateFeatures ----------------------------------------------------------------------------------------------------


def update_features(context: RequestContext, request: wire.UpdateFeaturesRequest) -> wire.UpdateFeaturesResponse:
    """Versions 0 to 2. Every feature is at its highest level, where it stays: asking for that is granted."""
    results = []
    for update in request.feature_updates:
        feature = next((each for each in FEATURES if each.name == update.feature), None)
        message = None
        if feature is None:
            message = f"There is no feature {update.feature!r}; known are {', '.join(each.name for each in FEATURES)}."
        elif update.max_version_level != feature.level:
            message = f"{feature.name} is at level {feature.level} and stays there."
        code = ErrorCode.NONE if message is None else ErrorCode.INVALID_UPDATE_VERSION
        results.append(wire.UpdatableFeatureResult(feature=update.feature, error_code=code, error_message=message))
    refused = next((each for each in results if each.error_code), None)
    if refused is None or context.version < _FIRST_VERSION_WITHOUT_RESULTS:
        return wire.UpdateFeaturesResponse(error_code=ErrorCode.NONE, results=tuple(results))
    return wire.UpdateFeaturesResponse(error_code=refused.error_code, error_message=refused.error_message)


def _timeout_s(timeout_ms: int) -> float:
    return min(max(timeout_ms / 1000, 1.0), _TIMEOUT_SECONDS_MAX)


def _coded(outcome: Outcome, code_of: Callable[[PenstockError], ErrorCode] = error_code) -> _CodeAndMessage:
    if outcome.error is None:
        return ErrorCode.NONE, None
    kind: type[PenstockError] = getattr(errors, outcome.error, PenstockError)
    return code_of(kind(outcome.message)), outcome.message


# -- AlterPartitionReassignments ---------------------------------------------------------------------------------------


async def alter_reassignments(
    context: RequestContext, request: wire.AlterPartitionReassignmentsRequest
) -> wire.AlterPartitionReassignmentsResponse:
    """Versions 0 and 1. From 1 on the number of replicas can be kept from changing (KIP-860)."""
    may_resize = context.version < _FIRST_STRICT_VERSION or request.allow_replication_factor_change
    results: dict[tuple[str, int], _CodeAndMessage] = {}
    moves: list[Move] = []
    for topic in request.topics:
        for row in topic.partitions:
            move = Move(topic=topic.name, partition=row.partition_index, replicas=row.replicas)
            refusal = None if may_resize else _resizes(context.broker, move)
            if refusal is None:
                moves.append(move)
            else:
                results[topic.name, row.partition_index] = (error_code(refusal), refusal.message)
    try:
        if moves:
            command = Reassign(moves=tuple(moves))
            answer = await context.broker.controller.submit(command, timeout_s=_timeout_s(request.timeout_ms))
            assert isinstance(answer, Outcomes)
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


def _reassigned(index: int, coded: _CodeAndMessage) -> wire.ReassignablePartitionResponse:
    return wire.ReassignablePartitionResponse(partition_index=index, error_code=coded[0], error_message=coded[1])


def _resizes(broker: Broker, move: Move) -> InvalidReplicationFactor | None:
    """Why a move is refused that would leave a partition with more or fewer replicas than it has."""
    topic = broker.metadata.topics.get(move.topic)
    if topic is None or move.replicas is None or not 0 <= move.partition < len(topic.partitions):
        return None  # the controller will refuse it
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
    context: RequestContext, request: wire.ListPartitionReassignmentsRequest
) -> wire.ListPartitionReassignmentsResponse:
    """Version 0. Partitions that are not moving, or not there, are left out."""
    known = context.broker.metadata.topics
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


async def elect_leaders(context: RequestContext, request: wire.ElectLeadersRequest) -> wire.ElectLeadersResponse:
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
        answer = await context.broker.controller.submit(command, timeout_s=_timeout_s(request.timeout_ms))
        assert isinstance(answer, Outcomes)
    except PenstockError as error:
        return wire.ElectLeadersResponse(error_code=error_code(error), replica_election_results=())

    code_of = partial(election_error_code, is_unclean=is_unclean)
    topics: dict[str, list[wire.PartitionResult]] = {}
    for outcome in answer.outcomes:
        if places is None and outcome.error == ElectionNotNeeded.__name__:
            continue  # a request for all partitions lists only those that have a new leader
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


async def describe_quorum(context: RequestContext, request: wire.DescribeQuorumRequest) -> wire.DescribeQuorumResponse:
    """Versions 0 to 2. Offsets are the indexes of entries that a member has applied; -1 if it does not answer."""
    broker = context.broker
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
    leader_id = -1 if quorum.leader_id is None else quorum.leader_id
    code = ErrorCode.NONE
    if not is_known or index != 0:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif quorum.leader_id is None:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    leader = reports.get(leader_id)
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

    is_described = code is ErrorCode.NONE
    return wire.DescribedQuorumPartition(
        partition_index=index,
        error_code=code,
        leader_id=leader_id,
        leader_epoch=quorum.term,
        high_watermark=end,
        current_voters=tuple(state(*item) for item in sorted(quorum.members.voters.items())) if is_described else (),
        observers=tuple(state(*item) for item in sorted(quorum.members.learners.items())) if is_described else (),
    )


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return NO_UUID


HANDLERS = (
    Handler(wire.MetadataRequest, metadata),
    Handler(wire.DescribeTopicPartitionsRequest, describe_topic_partitions),
    Handler(wire.DescribeClusterRequest, describe_cluster),
    Handler(wire.UpdateFeaturesRequest, update_features),
    Handler(wire.AlterPartitionReassignmentsRequest, alter_reassignments),
    Handler(wire.ListPartitionReassignmentsRequest, list_reassignments),
    Handler(wire.ElectLeadersRequest, elect_leaders),
    Handler(wire.DescribeQuorumRequest, describe_quorum),
)
