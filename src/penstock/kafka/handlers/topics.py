"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from __future__ import annotations

from collections import Counter
from typing import Final

from penstock.cluster.controller import TopicSpec
from penstock.cluster.topic_config import SETTINGS
from penstock.errors import InvalidReplicaAssignment, InvalidRequest, PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.configs import SOURCE_DEFAULT, SOURCE_TOPIC
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol.errors import ErrorCode
from penstock.kafka.protocol.schema import NO_UUID
from penstock.kafka.protocol.topic_messages import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_DEFAULT: Final = -1  # partitions or replication factor: take the cluster's default (KIP-464)


async def create_topics(exchange: Exchange, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Versions 2 to 7. From 5 on the response tells what was created, from 7 on with its id."""
    names = Counter(topic.name for topic in request.topics)
    results = []
    for topic in request.topics:
        try:
            if names[topic.name] > 1:
                raise InvalidRequest(f"Topic {topic.name!r} is asked for more than once in one request.")
            results.append(await _create(exchange, topic, validate_only=request.validate_only))
        except PenstockError as error:
            results.append(
                CreatableTopicResult(name=topic.name, error_code=error_code(error), error_message=error.message)
            )
    return CreateTopicsResponse(topics=tuple(results))


async def _create(exchange: Exchange, wanted: CreatableTopic, *, validate_only: bool) -> CreatableTopicResult:
    broker = exchange.broker
    created = await broker.create_topic(_spec(wanted), validate_only=validate_only)
    if created is None:
        return CreatableTopicResult(name=wanted.name, error_code=ErrorCode.NONE)
    settings = broker.topic_settings(wanted.name)
    configs = tuple(
        CreatableTopicConfigs(
            name=setting.name,
            value=setting.show(settings),
            read_only=False,
            config_source=SOURCE_TOPIC if setting.name in created.configs else SOURCE_DEFAULT,
            is_sensitive=False,
        )
        for setting in SETTINGS.values()
    )
    return CreatableTopicResult(
        name=wanted.name,
        topic_id=created.topic_id,
        error_code=ErrorCode.NONE,
        num_partitions=len(created.partitions),
        replication_factor=created.replication_factor,
        configs=configs,
    )


def _spec(wanted: CreatableTopic) -> TopicSpec:
    assignment = None
    if wanted.assignments:
        rows = sorted(wanted.assignments, key=lambda row: row.partition_index)
        if [row.partition_index for row in rows] != list(range(len(rows))):
            raise InvalidReplicaAssignment("The assignment must name every partition once, numbered from 0.")
        assignment = [row.broker_ids for row in rows]
        if (wanted.num_partitions, wanted.replication_factor) != (_DEFAULT, _DEFAULT):
            raise InvalidRequest("Give either an assignment, or partitions and replication factor; not both.")
    return TopicSpec(
        name=wanted.name,
        partitions=None if wanted.num_partitions == _DEFAULT else wanted.num_partitions,
        replication_factor=None if wanted.replication_factor == _DEFAULT else wanted.replication_factor,
        configs={config.name: config.value for config in wanted.configs if config.value is not None},
        assignment=assignment,
    )


async def delete_topics(exchange: Exchange, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Versions 1 to 6. From 6 on topics may be meant by id."""
    wanted = request.topics or tuple(DeleteTopicState(name=name, topic_id=NO_UUID) for name in request.topic_names)
    return DeleteTopicsResponse(responses=tuple([await _delete(exchange, state) for state in wanted]))


async def _delete(exchange: Exchange, state: DeleteTopicState) -> DeletableTopicResult:
    broker = exchange.broker
    name = state.name
    if name is None:
        topic = broker.metadata.topic_by_id(state.topic_id)
        if topic is None:
            return DeletableTopicResult(
                name=None,
                topic_id=state.topic_id,
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                error_message="There is no topic with this id.",
            )
        name = topic.name
    try:
        topic_id = broker.metadata.topic(name).topic_id
        await broker.delete_topic(name)
    except PenstockError as error:
        return DeletableTopicResult(name=name, error_code=error_code(error), error_message=error.message)
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=ErrorCode.NONE)


async def create_partitions(exchange: Exchange, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Versions 0 to 3."""
    results = [await _grow(exchange, topic, validate_only=request.validate_only) for topic in request.topics]
    return CreatePartitionsResponse(results=tuple(results))


async def _grow(
    exchange: Exchange, wanted: CreatePartitionsTopic, *, validate_only: bool
) -> CreatePartitionsTopicResult:
    assignment = None if wanted.assignments is None else [row.broker_ids for row in wanted.assignments]
    try:
        await exchange.broker.add_partitions(
            wanted.name, wanted.count, assignment=assignment, validate_only=validate_only
        )
    except PenstockError as error:
        return CreatePartitionsTopicResult(name=wanted.name, error_code=error_code(error), error_message=error.message)
    return CreatePartitionsTopicResult(name=wanted.name, error_code=ErrorCode.NONE)


async def delete_records(exchange: Exchange, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Versions 0 to 2."""
    results = []
    for topic in request.topics:
        partitions = [
            await _delete_records(exchange, topic.name, partition.partition_index, partition.offset)
            for partition in topic.partitions
        ]
        results.append(DeleteRecordsTopicResult(name=topic.name, partitions=tuple(partitions)))
    return DeleteRecordsResponse(topics=tuple(results))


async def _delete_records(exchange: Exchange, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    try:
        start = await exchange.broker.trim(topic, index, offset)
    except InvalidRequest:
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=ErrorCode.OFFSET_OUT_OF_RANGE
        )
    except PenstockError as error:
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1, error_code=error_code(error))
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=start, error_code=ErrorCode.NONE)


HANDLERS = (
    Handler(CreateTopicsRequest, create_topics),
    Handler(DeleteTopicsRequest, delete_topics),
    Handler(CreatePartitionsRequest, create_partitions),
    Handler(DeleteRecordsRequest, delete_records),
)
