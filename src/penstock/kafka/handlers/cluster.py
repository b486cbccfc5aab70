"""Metadata, DescribeTopicPartitions, DescribeCluster, UpdateFeatures: who the nodes are and what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

import msgspec

from penstock.broker.broker import Broker
from penstock.cluster.metadata import Topic
from penstock.cluster.records import NO_LEADER, NodeRegistered, PartitionAssigned
from penstock.errors import PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.features import FEATURES
from penstock.kafka.handlers.access import CLUSTER_OPERATIONS, NOT_ASKED_FOR, TOPIC_OPERATIONS
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol.broker_messages import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.schema import NO_UUID
from penstock.model import is_internal

_BROKER_ENDPOINTS: Final = 1
_PARTITIONS_MAX: Final = 2_000  # in one answer; Kafka's max.request.partition.size.limit
_FIRST_VERSION_WITHOUT_RESULTS: Final = 2


async def metadata(exchange: Exchange, request: MetadataRequest) -> MetadataResponse:
    """Versions 0 to 12. An empty list means all topics in version 0, later null does. From 10 on also by id."""
    broker = exchange.broker
    asks_for_all = request.topics is None or (exchange.version == 0 and not request.topics)
    if asks_for_all:
        living = _living(broker)
        topics = [_describe(topic, living) for topic in broker.metadata.topics.values()]
    else:
        assert request.topics is not None
        may_create = request.allow_auto_topic_creation
        topics = [await _look_up(exchange, wanted, may_create=may_create) for wanted in request.topics]
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=node.node_id, host=host, port=port, rack=node.rack)
            for node, (host, port) in _addresses(exchange, broker.known_nodes.listed())
        ),
        cluster_id=broker.metadata.cluster_id,
        controller_id=_controller(broker),
        topics=tuple(map(_with_operations, topics) if request.include_topic_authorized_operations else topics),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )


def _with_operations(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    """What the client may do with a topic that there is."""
    if topic.error_code:
        return topic
    return msgspec.structs.replace(topic, topic_authorized_operations=TOPIC_OPERATIONS)


def _living(broker: Broker) -> frozenset[int]:
    """The nodes that clients may be sent to. One that has lost the cluster does not name itself."""
    living = frozenset(node.node_id for node in broker.metadata.nodes.values() if not node.is_fenced)
    return living - {broker.config.node_id} if broker.replicas.is_isolated else living


def _addresses(exchange: Exchange, nodes: Iterable[NodeRegistered]) -> list[tuple[NodeRegistered, tuple[str, int]]]:
    return [(node, exchange.address_of(node)) for node in nodes]


def _controller(broker: Broker) -> int:
    """Who leads the quorum, if clients may be sent there; any node takes what is meant for the controller."""
    leader_id = broker.quorum.leader_id
    return leader_id if leader_id is not None and leader_id in _living(broker) else -1


async def _look_up(exchange: Exchange, wanted: MetadataRequestTopic, *, may_create: bool) -> MetadataResponseTopic:
    broker = exchange.broker
    if wanted.name is None or wanted.topic_id != NO_UUID:  # with an id, clients send any name, such as an empty one
        topic = broker.metadata.topic_by_id(wanted.topic_id)
        if topic is None:
            return _missing("" if exchange.version < 12 else None, wanted.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        return _describe(topic, _living(broker))
    try:
        topic = await broker.ensure_topic(wanted.name) if may_create else broker.metadata.topic(wanted.name)
        return _describe(topic, _living(broker))
    except PenstockError as error:
        return _missing(wanted.name, NO_UUID, error_code(error))


def _missing(name: str | None, topic_id: UUID, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=())


def _describe(topic: Topic, living: frozenset[int]) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=tuple(_describe_partition(partition, living) for partition in topic.partitions),
    )


def _describe_partition(partition: PartitionAssigned, living: frozenset[int]) -> MetadataResponsePartition:
    """A leader that clients are not told of is none to them: they ask again until there is one."""
    has_leader = partition.leader in living
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=partition.partition,
        leader_id=partition.leader if has_leader else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.in_sync,
        offline_replicas=tuple([node_id for node_id in partition.replicas if node_id not in living]),
    )


def describe_cluster(exchange: Exchange, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Versions 0 and 1. Version 1 can ask for controllers instead of brokers, which are not reached separately here."""
    broker = exchange.broker
    if request.endpoint_type != _BROKER_ENDPOINTS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="This is a broker's address: ask for brokers.",
            cluster_id=broker.metadata.cluster_id,
            brokers=(),
        )
    living = [node for _, node in sorted(broker.metadata.nodes.items()) if not node.is_fenced]
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=broker.metadata.cluster_id,
        controller_id=_controller(broker),
        brokers=tuple(
            DescribeClusterBroker(broker_id=node.node_id, host=host, port=port, rack=node.rack)
            for node, (host, port) in _addresses(exchange, living)
        ),
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )


# -- DescribeTopicPartitions -------------------------------------------------------------------------------------------


def describe_topic_partitions(
    exchange: Exchange, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Version 0. Topics by name, all if none is named, page by page: the cursor says where the next one begins."""
    broker = exchange.broker
    cursor = request.cursor
    names = sorted({topic.name for topic in request.topics} or broker.metadata.topics)
    left = max(1, min(request.response_partition_limit, _PARTITIONS_MAX))
    living = _living(broker)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if cursor is not None and name < cursor.topic_name:
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if not left:
            return DescribeTopicPartitionsResponse(
                topics=tuple(topics), next_cursor=Cursor(topic_name=name, partition_index=first)
            )
        topic = broker.metadata.topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(DescribeTopicPartitionsResponseTopic(error_code=code, name=name, partitions=()))
            continue
        page = topic.partitions[max(first, 0) : max(first, 0) + left]
        left -= len(page)
        topics.append(_describe_page(topic, page, living))
        if page and page[-1].partition + 1 < len(topic.partitions):
            rest = Cursor(topic_name=name, partition_index=page[-1].partition + 1)
            return DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=rest)
    return DescribeTopicPartitionsResponse(topics=tuple(topics))


def _describe_page(
    topic: Topic, page: Sequence[PartitionAssigned], living: frozenset[int]
) -> DescribeTopicPartitionsResponseTopic:
    rows = []
    for partition in page:
        known = _describe_partition(partition, living)
        rows.append(
            DescribeTopicPartitionsResponsePartition(
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
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=tuple(rows),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


# -- UpdateFeatures ----------------------------------------------------------------------------------------------------


def update_features(exchange: Exchange, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
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
        results.append(UpdatableFeatureResult(feature=update.feature, error_code=code, error_message=message))
    refused = next((each for each in results if each.error_code), None)
    if refused is None or exchange.version < _FIRST_VERSION_WITHOUT_RESULTS:
        return UpdateFeaturesResponse(error_code=ErrorCode.NONE, results=tuple(results))
    return UpdateFeaturesResponse(error_code=refused.error_code, error_message=refused.error_message)


HANDLERS = (
    Handler(MetadataRequest, metadata),
    Handler(DescribeTopicPartitionsRequest, describe_topic_partitions),
    Handler(DescribeClusterRequest, describe_cluster),
    Handler(UpdateFeaturesRequest, update_features),
)
