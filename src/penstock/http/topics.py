"""Topics over REST: made, looked at, changed, grown and deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.broker.reach import extents_of
from penstock.broker.remote import Extent, Where
from penstock.cluster.controller import TopicSpec
from penstock.cluster.metadata import Topic
from penstock.cluster.records import PartitionAssigned
from penstock.cluster.topic_config import SETTINGS
from penstock.errors import PolicyViolation
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, no_content, reply
from penstock.model import is_internal

SettingValue = str | int | float | bool
Configs = Annotated[
    dict[str, SettingValue], Meta(description="Topic settings under Kafka's names, such as retention.ms.")
]
PartitionCount = Annotated[int, Meta(ge=1, le=10_000)]


class CreateTopicRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic to create; what is left out takes the cluster's default."""

    name: str
    partitions: PartitionCount | None = None
    replication_factor: Annotated[int, Meta(ge=1, le=32_767)] | None = None
    configs: Configs = {}


class AlterTopicRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings to change; null puts one back to its default. Settings not named stay."""

    configs: dict[str, SettingValue | None]


class AddPartitionsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many partitions the topic is to have in all; more than it has now."""

    partitions: PartitionCount


class TopicsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_internal: Annotated[bool, Meta(description="Whether to show the broker's own topics.")] = False


class LostView(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets from `first_offset` up to before `next_offset`: their records were damaged on every replica."""

    first_offset: int
    next_offset: int


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """A partition: who leads it (-1 if nobody), who has it, and what it holds; null if its leader does not answer.

    While its replicas move, `adding` are those that come and `removing` those that go.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    log_start_offset: int | None
    high_watermark: int | None
    size_bytes: int | None
    segments: int | None
    lost: Annotated[list[LostView], Meta(description="What no replica has any more; readers go past it.")]


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in a list, as far as its leaders answer. `messages` counts offsets, so compaction can make it too high.

    `size_bytes` is what one replica of each partition takes.
    """

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    is_internal: bool
    messages: int
    size_bytes: int


class TopicDetail(TopicView, frozen=True, kw_only=True):
    """A topic with its partitions and settings: `configs` are those it sets itself, `settings` all that apply."""

    configs: dict[str, str]
    settings: dict[str, str]
    partition_details: list[PartitionView]


class TopicList(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[TopicView]


async def list_topics(door: Door, call: Call[None, TopicsQuery]) -> TopicList:
    """Every topic, by name."""
    known = sorted(door.broker.metadata.topics.values(), key=lambda topic: topic.name)
    shown = [topic for topic in known if call.query.include_internal or not is_internal(topic.name)]
    extents = await _extents(door, shown)
    return TopicList(topics=[_view(topic, extents) for topic in shown])


async def create_topic(door: Door, call: Call[CreateTopicRequest, None]) -> Reply:
    """Create a topic."""
    body = call.body
    _refuse_internal(body.name)
    spec = TopicSpec(
        name=body.name,
        partitions=body.partitions,
        replication_factor=body.replication_factor,
        configs={name: _setting_text(value) for name, value in body.configs.items()},
    )
    topic = await door.broker.create_topic(spec)
    assert topic is not None
    return reply(await _detail(door, topic), 201, [(b"location", f"/v1/topics/{topic.name}".encode())])


async def describe_topic(door: Door, call: Call[None, None]) -> TopicDetail:
    """One topic with its partitions and settings."""
    return await _detail(door, door.broker.metadata.topic(call.topic))


async def alter_topic(door: Door, call: Call[AlterTopicRequest, None]) -> TopicDetail:
    """Set and unset settings of a topic: all of them, or none if one is wrong."""
    _refuse_internal(call.topic)
    changes = {name: None if value is None else _setting_text(value) for name, value in call.body.configs.items()}
    await door.broker.configure_topic(call.topic, changes)
    return await _detail(door, door.broker.metadata.topic(call.topic))


async def delete_topic(door: Door, call: Call[None, None]) -> Reply:
    """Delete a topic and everything in it."""
    _refuse_internal(call.topic)
    await door.broker.delete_topic(call.topic)
    return no_content()


async def add_partitions(door: Door, call: Call[AddPartitionsRequest, None]) -> TopicDetail:
    """Grow a topic. Messages stay where they are; new ones of a key may go to another partition than before."""
    _refuse_internal(call.topic)
    await door.broker.add_partitions(call.topic, call.body.partitions)
    return await _detail(door, door.broker.metadata.topic(call.topic))


def _refuse_internal(name: str) -> None:
    if is_internal(name):
        raise PolicyViolation(f"{name!r} is a name for the broker's own state; only the broker makes or changes it.")


def _setting_text(value: SettingValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _extents(door: Door, topics: Iterable[Topic]) -> dict[Where, Extent]:
    return await extents_of(
        door.broker, [(topic.name, assigned.partition) for topic in topics for assigned in topic.partitions]
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


async def _detail(door: Door, topic: Topic) -> TopicDetail:
    extents = await _extents(door, [topic])
    settings = door.broker.topic_settings(topic.name)
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
