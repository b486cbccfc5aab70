"""Metadata, DescribeCluster: who the nodes are and what they hold."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from penstock.cluster.metadata import Topic
from penstock.cluster.records import NO_LEADER, PartitionAssigned
from penstock.errors import PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol.broker_messages import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.schema import NO_UUID
from penstock.model import is_internal

_BROKER_ENDPOINTS: Final = 1


async def metadata(exchange: Exchange, request: MetadataRequest) -> MetadataResponse:
    """Versions 0 to 12. An empty list means all topics in version 0, later null does. From 10 on also by id."""
    broker = exchange.broker
    asks_for_all = request.topics is None or (exchange.version == 0 and not request.topics)
    if asks_for_all:
        topics = [_describe(topic) for topic in broker.metadata.topics.values()]
    else:
        assert request.topics is not None
        may_create = request.allow_auto_topic_creation
        topics = [await _look_up(exchange, wanted, may_create=may_create) for wanted in request.topics]
    addresses = [(node, exchange.address_of(node)) for node in broker.metadata.nodes.values()]
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=node.node_id, host=host, port=port, rack=node.rack)
            for node, (host, port) in addresses
        ),
        cluster_id=broker.metadata.cluster_id,
        controller_id=broker.config.node_id,
        topics=tuple(topics),
    )


async def _look_up(exchange: Exchange, wanted: MetadataRequestTopic, *, may_create: bool) -> MetadataResponseTopic:
    broker = exchange.broker
    if wanted.name is None or wanted.topic_id != NO_UUID:  # with an id, clients send any name, such as an empty one
        topic = broker.metadata.topic_by_id(wanted.topic_id)
        if topic is None:
            return _missing("" if exchange.version < 12 else None, wanted.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        return _describe(topic)
    try:
        topic = await broker.ensure_topic(wanted.name) if may_create else broker.metadata.topic(wanted.name)
        return _describe(topic)
    except PenstockError as error:
        return _missing(wanted.name, NO_UUID, error_code(error))


def _missing(name: str | None, topic_id: UUID, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=())


def _describe(topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=tuple(_describe_partition(partition) for partition in topic.partitions),
    )


def _describe_partition(partition: PartitionAssigned) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else ErrorCode.NONE,
        partition_index=partition.partition,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.in_sync,
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
    addresses = [(node, exchange.address_of(node)) for node in broker.metadata.nodes.values()]
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=broker.metadata.cluster_id,
        controller_id=broker.config.node_id,
        brokers=tuple(
            DescribeClusterBroker(broker_id=node.node_id, host=host, port=port, rack=node.rack)
            for node, (host, port) in addresses
        ),
    )


HANDLERS = (Handler(MetadataRequest, metadata), Handler(DescribeClusterRequest, describe_cluster))
