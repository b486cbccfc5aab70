"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from __future__ import annotations

from collections import Counter
from typing import Final
from uuid import UUID

from penstock.access.acls import AclAction, AclResource
from penstock.consensus.controller import TopicSpec
from penstock.consensus.topic_config import SETTINGS
from penstock.doors.kafka.caller import REFUSED, Caller
from penstock.doors.kafka.errors import error_code
from penstock.doors.kafka.handler import Handler, RequestContext
from penstock.doors.kafka.handlers.configs import SOURCE_DEFAULT, SOURCE_TOPIC
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import topics as wire
from penstock.doors.kafka.protocol.schema import NO_UUID
from penstock.errors import InvalidReplicaAssignment, InvalidRequest, PenstockError

_DEFAULT: Final = -1  # partitions or replication factor: take the cluster's default (KIP-464)


async def create_topics(context: RequestContext, request: wire.CreateTopicsRequest) -> wire.CreateTopicsResponse:
    """Versions 2 to 7. From 5 on the response describes what was created, from 7 on with its id."""
    names = Counter(topic.name for topic in request.topics)
    results = []
    for topic in request.topics:
        try:
            if names[topic.name] > 1:
                raise InvalidRequest(f"Topic {topic.name!r} occurs more than once in the request.")
            results.append(await _create(context, topic, validate_only=request.validate_only))
        except PenstockError as error:
            results.append(
                wire.CreatableTopicResult(name=topic.name, error_code=error_code(error), error_message=error.message)
            )
    return wire.CreateTopicsResponse(topics=tuple(results))


async def _create(
    context: RequestContext, wanted: wire.CreatableTopic, *, validate_only: bool
) -> wire.CreatableTopicResult:
    broker = context.broker
    created = await broker.create_topic(_spec(wanted), validate_only=validate_only)
    if created is None:
        return wire.CreatableTopicResult(name=wanted.name, error_code=ErrorCode.NONE)
    if not context.caller.may_topic(AclAction.DESCRIBE_CONFIGS, wanted.name):
        return wire.CreatableTopicResult(
            name=wanted.name,
            topic_id=created.topic_id,
            error_code=ErrorCode.NONE,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
    settings = broker.topic_settings(wanted.name)
    configs = tuple(
        wire.CreatableTopicConfigs(
            name=setting.name,
            value=setting.show(settings),
            read_only=False,
            config_source=SOURCE_TOPIC if setting.name in created.configs else SOURCE_DEFAULT,
            is_sensitive=False,
        )
        for setting in SETTINGS.values()
    )
    return wire.CreatableTopicResult(
        name=wanted.name,
        topic_id=created.topic_id,
        error_code=ErrorCode.NONE,
        num_partitions=len(created.partitions),
        replication_factor=created.replication_factor,
        configs=configs,
    )


def _spec(wanted: wire.CreatableTopic) -> TopicSpec:
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


async def delete_topics(context: RequestContext, request: wire.DeleteTopicsRequest) -> wire.DeleteTopicsResponse:
    """Versions 1 to 6. From 6 on topics may be given by id."""
    wanted = request.topics or tuple(wire.DeleteTopicState(name=name, topic_id=NO_UUID) for name in request.topic_names)
    return wire.DeleteTopicsResponse(responses=tuple([await _delete(context, state) for state in wanted]))


async def _delete(context: RequestContext, state: wire.DeleteTopicState) -> wire.DeletableTopicResult:
    broker, caller = context.broker, context.caller
    name = state.name
    if name is None:
        topic = broker.metadata.topic_by_id(state.topic_id)
        if topic is None:
            return wire.DeletableTopicResult(
                name=None,
                topic_id=state.topic_id,
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                error_message="There is no topic with this id.",
            )
        if not caller.may_topic(AclAction.DESCRIBE, topic.name):
            return _not_deleted(caller, None, state.topic_id)
        name = topic.name
    if not (caller.may_cluster(AclAction.DELETE) or caller.may_topic(AclAction.DELETE, name)):
        return _not_deleted(caller, name, state.topic_id)
    try:
        topic_id = broker.metadata.topic(name).topic_id
        await broker.delete_topic(name)
    except PenstockError as error:
        return wire.DeletableTopicResult(name=name, error_code=error_code(error), error_message=error.message)
    return wire.DeletableTopicResult(name=name, topic_id=topic_id, error_code=ErrorCode.NONE)


def _not_deleted(caller: Caller, name: str | None, topic_id: UUID) -> wire.DeletableTopicResult:
    code = caller.refuse(wire.DeleteTopicsRequest.api, AclResource.TOPIC, name or str(topic_id))
    return wire.DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=REFUSED)


async def create_partitions(
    context: RequestContext, request: wire.CreatePartitionsRequest
) -> wire.CreatePartitionsResponse:
    """Versions 0 to 3."""
    results = [await _grow(context, topic, validate_only=request.validate_only) for topic in request.topics]
    return wire.CreatePartitionsResponse(results=tuple(results))


async def _grow(
    context: RequestContext, wanted: wire.CreatePartitionsTopic, *, validate_only: bool
) -> wire.CreatePartitionsTopicResult:
    assignment = None if wanted.assignments is None else [row.broker_ids for row in wanted.assignments]
    try:
        await context.broker.add_partitions(
            wanted.name, wanted.count, assignment=assignment, validate_only=validate_only
        )
    except PenstockError as error:
        return wire.CreatePartitionsTopicResult(
            name=wanted.name, error_code=error_code(error), error_message=error.message
        )
    return wire.CreatePartitionsTopicResult(name=wanted.name, error_code=ErrorCode.NONE)


async def delete_records(context: RequestContext, request: wire.DeleteRecordsRequest) -> wire.DeleteRecordsResponse:
    """Versions 0 to 2."""
    results = []
    for topic in request.topics:
        partitions = [
            await _delete_records(context, topic.name, partition.partition_index, partition.offset)
            for partition in topic.partitions
        ]
        results.append(wire.DeleteRecordsTopicResult(name=topic.name, partitions=tuple(partitions)))
    return wire.DeleteRecordsResponse(topics=tuple(results))


async def _delete_records(
    context: RequestContext, topic: str, index: int, offset: int
) -> wire.DeleteRecordsPartitionResult:
    try:
        start = await context.broker.trim(topic, index, offset)
    except InvalidRequest:
        return wire.DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=ErrorCode.OFFSET_OUT_OF_RANGE
        )
    except PenstockError as error:
        return wire.DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1, error_code=error_code(error))
    return wire.DeleteRecordsPartitionResult(partition_index=index, low_watermark=start, error_code=ErrorCode.NONE)


HANDLERS = (
    Handler(wire.CreateTopicsRequest, create_topics),
    Handler(wire.DeleteTopicsRequest, delete_topics),
    Handler(wire.CreatePartitionsRequest, create_partitions),
    Handler(wire.DeleteRecordsRequest, delete_records),
)
