"""Serves topics: made, looked at, changed, grown and deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.api.topics import (
    AddPartitions,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    LostView,
    PartitionView,
    SettingValue,
    TopicDetail,
    TopicList,
    TopicView,
)
from penstock.consensus.controller import TopicSpec
from penstock.consensus.metadata import Topic
from penstock.consensus.records import PartitionAssigned
from penstock.consensus.topic_config import SETTINGS
from penstock.errors import PolicyViolation
from penstock.model import is_internal
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import serves
from penstock.partitions.access import Extent, Where


@serves(ListTopics)
async def list_topics(services: Services, request: ListTopics, _caller: Caller) -> TopicList:
    known = sorted(services.metadata.topics.values(), key=lambda topic: topic.name)
    shown = [
        topic
        for topic in known
        if topic.name > request.after and (request.include_internal or not is_internal(topic.name))
    ]
    page = shown[: request.limit]
    extents = await _extents(services, page)
    return TopicList(
        topics=[_view(topic, extents) for topic in page], next=page[-1].name if len(shown) > len(page) else ""
    )


@serves(CreateTopic)
async def create_topic(services: Services, request: CreateTopic, _caller: Caller) -> TopicDetail:
    _refuse_internal(request.name)
    spec = TopicSpec(
        name=request.name,
        partitions=request.partitions,
        replication_factor=request.replication_factor,
        configs={name: _setting_text(value) for name, value in request.configs.items()},
    )
    topic = await services.topics.create(spec, validate_only=request.validate_only)
    if topic is None:
        return _checked_only(spec)
    return await _detail(services, topic)


def _checked_only(spec: TopicSpec) -> TopicDetail:
    """A topic that could be created, and is not."""
    return TopicDetail(
        name=spec.name,
        topic_id="",
        partitions=spec.partitions or 0,
        replication_factor=spec.replication_factor or 0,
        is_internal=False,
        messages=0,
        size_bytes=0,
        configs=dict(spec.configs),
        settings={},
        partition_details=[],
    )


@serves(DescribeTopic)
async def describe_topic(services: Services, request: DescribeTopic, _caller: Caller) -> TopicDetail:
    return await _detail(services, services.metadata.topic(request.topic))


@serves(AlterTopic)
async def alter_topic(services: Services, request: AlterTopic, _caller: Caller) -> TopicDetail:
    _refuse_internal(request.topic)
    changes = {name: None if value is None else _setting_text(value) for name, value in request.configs.items()}
    await services.topics.configure(request.topic, changes)
    return await _detail(services, services.metadata.topic(request.topic))


@serves(DeleteTopic)
async def delete_topic(services: Services, request: DeleteTopic, _caller: Caller) -> None:
    _refuse_internal(request.topic)
    await services.topics.delete(request.topic)


@serves(AddPartitions)
async def add_partitions(services: Services, request: AddPartitions, _caller: Caller) -> TopicDetail:
    _refuse_internal(request.topic)
    await services.topics.add_partitions(request.topic, request.partitions)
    return await _detail(services, services.metadata.topic(request.topic))


def _refuse_internal(name: str) -> None:
    if is_internal(name):
        raise PolicyViolation(f"{name!r} is a name for the broker's own state; only the broker makes or changes it.")


def _setting_text(value: SettingValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _extents(services: Services, topics: Iterable[Topic]) -> dict[Where, Extent]:
    return await services.partitions.extents(
        [(topic.name, assigned.partition) for topic in topics for assigned in topic.partitions]
    )


def _view(topic: Topic, extents: Mapping[Where, Extent]) -> TopicView:
    held = [extents[topic.name, index] for index in range(len(topic.partitions)) if (topic.name, index) in extents]
    return TopicView(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partitions=len(topic.partitions),
        replication_factor=topic.replication_factor,
        is_internal=is_internal(topic.name),
        messages=sum(max(extent.high_watermark - extent.log_start_offset, 0) for extent in held),
        size_bytes=sum(extent.size_bytes for extent in held),
    )


async def _detail(services: Services, topic: Topic) -> TopicDetail:
    extents = await _extents(services, [topic])
    settings = services.topics.settings_of(topic.name)
    return TopicDetail(
        **msgspec.structs.asdict(_view(topic, extents)),
        configs=dict(topic.configs),
        settings={name: setting.show(settings) for name, setting in SETTINGS.items()},
        partition_details=[
            _partition_view(assigned, extents.get((topic.name, assigned.partition))) for assigned in topic.partitions
        ],
    )


def _partition_view(assigned: PartitionAssigned, extent: Extent | None) -> PartitionView:
    return PartitionView(
        partition=assigned.partition,
        leader=assigned.leader,
        leader_epoch=assigned.leader_epoch,
        replicas=assigned.replicas,
        in_sync=assigned.in_sync,
        adding=assigned.adding,
        removing=assigned.removing,
        log_start_offset=None if extent is None else extent.log_start_offset,
        high_watermark=None if extent is None else extent.high_watermark,
        size_bytes=None if extent is None else extent.size_bytes,
        segments=None if extent is None else extent.segments,
        lost=[LostView(first_offset=each.first_offset, next_offset=each.next_offset) for each in assigned.lost],
    )
