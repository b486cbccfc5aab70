"""Topics: made, looked at, changed, grown and deleted."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock import errors
from penstock.api import limits
from penstock.api.limits import TopicName
from penstock.api.operation import Action, Repeat, Request, Resource, operation

SettingValue = str | int | float | bool
Configs = Annotated[
    dict[str, SettingValue], Meta(description="Topic settings under Kafka's names, such as retention.ms.")
]
PartitionCount = Annotated[int, Meta(ge=1, le=limits.PARTITIONS_MAX)]

_CHANGE_ERRORS: Final = (errors.PolicyViolation, errors.UnknownTopic, errors.NotController, errors.DiskFull)


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
    """Some topics. `next` is what to give as `after` for those behind them; empty if there are none."""

    topics: list[TopicView]
    next: str = ""


@operation(
    "GET /v1/topics",
    tag="topics",
    needs=Action.DESCRIBE.of(Resource.TOPIC),
    repeat=Repeat.SAFE,
)
class ListTopics(Request[TopicList], frozen=True, kw_only=True):
    """Every topic, by name."""

    include_internal: Annotated[bool, Meta(description="Whether to show the broker's own topics.")] = False
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=limits.PAGE_MAX)] | None, Meta(description="How many at most; without it, all.")
    ] = None
    after: Annotated[str, Meta(description="`next` of the page before.")] = ""


@operation(
    "POST /v1/topics",
    tag="topics",
    needs=Action.CREATE.of(Resource.TOPIC, "name"),
    repeat=Repeat.AGAIN,
    errors=(*_CHANGE_ERRORS, errors.TopicExists),
    status=201,
    location="/v1/topics/{answer.name}",
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class CreateTopic(Request[TopicDetail], frozen=True, kw_only=True):
    """Create a topic; what is left out takes the cluster's default."""

    name: TopicName
    partitions: PartitionCount | None = None
    replication_factor: Annotated[int, Meta(ge=1, le=limits.REPLICATION_FACTOR_MAX)] | None = None
    configs: Configs = {}
    validate_only: Annotated[
        bool, Meta(description="Only check whether it could be created; the answer has no partitions then.")
    ] = False


@operation(
    "GET /v1/topics/{topic}",
    tag="topics",
    needs=Action.DESCRIBE.of(Resource.TOPIC, "topic"),
    repeat=Repeat.SAFE,
    errors=(errors.UnknownTopic,),
)
class DescribeTopic(Request[TopicDetail], frozen=True, kw_only=True):
    """One topic with its partitions and settings."""

    topic: TopicName


@operation(
    "PATCH /v1/topics/{topic}",
    tag="topics",
    needs=Action.ALTER.of(Resource.TOPIC, "topic"),
    repeat=Repeat.SAME,
    errors=_CHANGE_ERRORS,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class AlterTopic(Request[TopicDetail], frozen=True, kw_only=True):
    """Set and unset settings of a topic: all of them, or none if one is wrong."""

    topic: TopicName
    configs: Annotated[
        dict[str, SettingValue | None],
        Meta(description="Settings to change; null puts one back to its default. Settings not named stay."),
    ]


@operation(
    "DELETE /v1/topics/{topic}",
    tag="topics",
    needs=Action.DELETE.of(Resource.TOPIC, "topic"),
    repeat=Repeat.SAME,
    errors=(errors.PolicyViolation, errors.UnknownTopic, errors.NotController),
)
class DeleteTopic(Request[None], frozen=True, kw_only=True):
    """Delete a topic and everything in it."""

    topic: TopicName


@operation(
    "POST /v1/topics/{topic}/partitions",
    tag="topics",
    needs=Action.ALTER.of(Resource.TOPIC, "topic"),
    repeat=Repeat.SAME,
    errors=_CHANGE_ERRORS,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class AddPartitions(Request[TopicDetail], frozen=True, kw_only=True):
    """Grow a topic. Messages stay where they are; new ones of a key may go to another partition than before."""

    topic: TopicName
    partitions: Annotated[PartitionCount, Meta(description="How many it is to have in all; more than it has now.")]
