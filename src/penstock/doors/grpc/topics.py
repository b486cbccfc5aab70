"""Topics over gRPC: made, looked at, changed, grown and deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.consensus.controller import TopicSpec
from penstock.consensus.metadata import Topic
from penstock.consensus.records import NO_LEADER, PartitionAssigned
from penstock.consensus.topic_config import SETTINGS
from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.fields import needed, whole
from penstock.doors.grpc.method import Method, Unary
from penstock.doors.grpc.statuses import InvalidArgument
from penstock.errors import PolicyViolation
from penstock.grpc.generated import topics_pb2
from penstock.model import is_internal
from penstock.partitions.access import Extent, Where

_PAGE_SIZE_MAX: Final = 1_000
_PARTITIONS_MAX: Final = 10_000
_REPLICAS_MAX: Final = 32_767


async def create_topic(door: Door, _call: Call, request: topics_pb2.CreateTopicRequest) -> topics_pb2.Topic:
    _refuse_internal(needed(request.name, "name"))
    partitions, replicas = None, None
    if request.HasField("partition_count"):
        partitions = whole(request.partition_count, "partition_count", low=1, high=_PARTITIONS_MAX)
    if request.HasField("replication_factor"):
        replicas = whole(request.replication_factor, "replication_factor", low=1, high=_REPLICAS_MAX)
    spec = TopicSpec(
        name=request.name, partitions=partitions, replication_factor=replicas, configs=dict(request.configs)
    )
    topic = await door.broker.create_topic(spec, validate_only=request.validate_only)
    if topic is None:
        return topics_pb2.Topic(name=request.name, configs=dict(request.configs))
    return await _detail(door, topic)


async def get_topic(door: Door, _call: Call, request: topics_pb2.GetTopicRequest) -> topics_pb2.Topic:
    return await _detail(door, door.broker.metadata.topic(needed(request.name, "name")))


async def list_topics(door: Door, _call: Call, request: topics_pb2.ListTopicsRequest) -> topics_pb2.ListTopicsResponse:
    size = whole(request.page_size, "page_size", low=1, high=_PAGE_SIZE_MAX, default=_PAGE_SIZE_MAX)
    known = sorted(door.broker.metadata.topics.values(), key=lambda topic: topic.name)
    shown = [
        topic
        for topic in known
        if topic.name > request.page_token and (request.include_internal or not is_internal(topic.name))
    ]
    page = shown[:size]
    extents = await _extents(door, page)
    return topics_pb2.ListTopicsResponse(
        topics=[_view(topic, extents) for topic in page],
        next_page_token=page[-1].name if len(shown) > size else "",
    )


async def update_topic(door: Door, _call: Call, request: topics_pb2.UpdateTopicRequest) -> topics_pb2.Topic:
    _refuse_internal(needed(request.name, "name"))
    both = sorted(set(request.configs) & set(request.unset_configs))
    if both:
        raise InvalidArgument(f"configs and unset_configs both name {both[0]!r}.")
    changes: dict[str, str | None] = dict(request.configs) | dict.fromkeys(request.unset_configs)
    await door.broker.configure_topic(request.name, changes)
    return await _detail(door, door.broker.metadata.topic(request.name))


async def delete_topic(
    door: Door, _call: Call, request: topics_pb2.DeleteTopicRequest
) -> topics_pb2.DeleteTopicResponse:
    _refuse_internal(needed(request.name, "name"))
    await door.broker.delete_topic(request.name)
    return topics_pb2.DeleteTopicResponse()


async def add_partitions(door: Door, _call: Call, request: topics_pb2.AddPartitionsRequest) -> topics_pb2.Topic:
    _refuse_internal(needed(request.name, "name"))
    count = whole(request.partition_count, "partition_count", low=1, high=_PARTITIONS_MAX)
    await door.broker.add_partitions(request.name, count)
    return await _detail(door, door.broker.metadata.topic(request.name))


METHODS: Final[Mapping[str, Method]] = {
    "CreateTopic": Unary(create_topic),
    "GetTopic": Unary(get_topic),
    "ListTopics": Unary(list_topics),
    "UpdateTopic": Unary(update_topic),
    "DeleteTopic": Unary(delete_topic),
    "AddPartitions": Unary(add_partitions),
}


def _refuse_internal(name: str) -> None:
    if is_internal(name):
        raise PolicyViolation(f"{name!r} is a name for the broker's own state; only the broker makes or changes it.")


# -- views -------------------------------------------------------------------------------------------------------------


async def _extents(door: Door, topics: Iterable[Topic]) -> dict[Where, Extent]:
    return await door.broker.partitions.extents(
        [(topic.name, assigned.partition) for topic in topics for assigned in topic.partitions]
    )


def _view(topic: Topic, extents: Mapping[Where, Extent]) -> topics_pb2.Topic:
    held = [extents[topic.name, index] for index in range(len(topic.partitions)) if (topic.name, index) in extents]
    return topics_pb2.Topic(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partition_count=len(topic.partitions),
        replication_factor=topic.replication_factor,
        is_internal=is_internal(topic.name),
        message_count=sum(max(extent.high_watermark - extent.log_start_offset, 0) for extent in held),
        size_bytes=sum(extent.size_bytes for extent in held),
    )


async def _detail(door: Door, topic: Topic) -> topics_pb2.Topic:
    extents = await _extents(door, [topic])
    settings = door.broker.topic_settings(topic.name)
    view = _view(topic, extents)
    view.configs.update(topic.configs)
    view.settings.update({name: setting.show(settings) for name, setting in SETTINGS.items()})
    view.partitions.extend(
        _partition_view(assigned, extents.get((topic.name, assigned.partition))) for assigned in topic.partitions
    )
    return view


def _partition_view(assigned: PartitionAssigned, extent: Extent | None) -> topics_pb2.Partition:
    return topics_pb2.Partition(
        partition=assigned.partition,
        leader=None if assigned.leader == NO_LEADER else assigned.leader,
        leader_epoch=assigned.leader_epoch,
        replicas=assigned.replicas,
        in_sync=assigned.in_sync,
        adding=assigned.adding,
        removing=assigned.removing,
        log_start_offset=None if extent is None else extent.log_start_offset,
        high_watermark=None if extent is None else extent.high_watermark,
        size_bytes=None if extent is None else extent.size_bytes,
        segments=None if extent is None else extent.segments,
        lost=[
            topics_pb2.LostRecords(first_offset=each.first_offset, next_offset=each.next_offset)
            for each in assigned.lost
        ],
    )
