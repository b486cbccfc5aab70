"""Consumer groups: being a member; looking at groups, moving their offsets, deleting them; and how far topics reach."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock import errors
from penstock.api import limits
from penstock.api.cluster import PlaceView
from penstock.api.limits import GroupId, Name, Offset, PartitionIndex, TopicName
from penstock.api.messages import DeliveredMessage
from penstock.api.operation import Action, Keeper, Packed, Repeat, Request, Resource, Where, operation

GroupState = Literal["stable", "rebalancing"]
MemberId = Annotated[
    str, Meta(min_length=1, max_length=limits.MEMBER_ID_CHARS_MAX, description="As the answer to join has it.")
]
Generation = Annotated[
    int | None, Meta(description="If given, the call is refused unless the member is in this generation.")
]
MemberWaitMs = Annotated[int, Meta(ge=0, le=limits.MEMBER_WAIT_MS_MAX)]
LastPoll = Annotated[
    Annotated[int, Meta(ge=0)] | None,
    Meta(description="The number (`poll`) of the last answer that arrived; 0 if none did."),
]

_AT_COORDINATOR: Final = Where(Keeper.GROUP, "group")
_AT_NEW_COORDINATOR: Final = Where(Keeper.GROUP, "group", makes=True)
_MEMBER: Final = Action.READ.of(Resource.GROUP, "group")
_JOIN: Final = (_MEMBER, Action.READ.of(Resource.TOPIC, "topics"))
_OFFSETS: Final = (_MEMBER, Action.READ.of(Resource.TOPIC, "offsets.topic"))
_MEMBER_ERRORS: Final = (
    errors.PolicyViolation,
    errors.UnknownTopic,
    errors.UnknownMember,
    errors.GroupError,
    errors.NotCoordinator,
)


# -- members -----------------------------------------------------------------------------------------------------------


class CommitItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The offset of the next message to be read, one more than that of the last one done."""

    topic: Name
    partition: PartitionIndex
    offset: Offset
    metadata: str = ""


class MembershipView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member stands. While its group is rebalancing it gets no messages; it should poll to take part."""

    group: str
    member_id: str
    generation: int
    state: GroupState
    partitions: list[PlaceView]


class PolledView(MembershipView, frozen=True, kw_only=True):
    """Messages, in order within each partition. `rebalanced` tells that the partitions are others than last time."""

    poll: int
    rebalanced: bool
    messages: list[DeliveredMessage]


class CommittedView(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed now that was not before."""

    offsets: list[CommitItem]


@operation(
    "POST /v1/groups/{group}/poll",
    name="poll_group",
    tag="groups",
    needs=_MEMBER,
    repeat=Repeat.NAMED,
    key="last_poll",
    errors=(*_MEMBER_ERRORS, errors.CorruptRecords),
    where=_AT_COORDINATOR,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class PollGroup(Request[PolledView | Packed], frozen=True, kw_only=True):
    """Get the next messages of a member's partitions, waiting for them up to `wait_ms`."""

    group: GroupId
    member_id: MemberId
    max_messages: Annotated[int, Meta(ge=1, le=limits.READ_MAX)] = 100
    max_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Of keys and values, about; one message is returned however large it is."),
    ] = None
    wait_ms: Annotated[MemberWaitMs, Meta(description="How long to wait if there is no message yet.")] = (
        limits.MEMBER_WAIT_MS_MAX
    )
    last_poll: LastPoll = None


@operation(
    "POST /v1/groups/{group}/join",
    tag="groups",
    needs=_JOIN,
    repeat=Repeat.AGAIN,
    errors=(*_MEMBER_ERRORS, errors.DiskFull),
    where=_AT_NEW_COORDINATOR,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class JoinGroup(Request[MembershipView], frozen=True, kw_only=True):
    """Become a member of a group, and answer when it has settled, or after `wait_ms`."""

    group: GroupId
    topics: Annotated[list[Name], Meta(min_length=1, max_length=limits.TOPICS_SUBSCRIBED_MAX)]
    member_id: Annotated[
        MemberId | None, Meta(description="To join again as the same member, with other topics or after a restart.")
    ] = None
    instance_id: Annotated[
        Name | None, Meta(description="Names a static member: who joins with it takes its predecessor's place.")
    ] = None
    client_id: Annotated[
        str, Meta(max_length=limits.NAME_CHARS_MAX, description="Shown where the group is described.")
    ] = ""
    session_timeout_ms: Annotated[
        int, Meta(ge=1, le=limits.INT32_MAX, description="After this long without a call the member is out.")
    ] = limits.SESSION_TIMEOUT_MS
    auto_offset_reset: Annotated[
        Literal["earliest", "latest"], Meta(description="Where to begin in partitions without a committed offset.")
    ] = "earliest"
    auto_commit: Annotated[bool, Meta(description="Whether each poll commits what the one before it returned.")] = False
    wait_ms: Annotated[MemberWaitMs, Meta(description="How long to wait until the group has settled.")] = (
        limits.MEMBER_WAIT_MS_MAX
    )


@operation(
    "POST /v1/groups/{group}/commit",
    tag="groups",
    needs=_OFFSETS,
    repeat=Repeat.SAME,
    errors=(*_MEMBER_ERRORS, errors.OffsetOutOfRange),
    where=_AT_NEW_COORDINATOR,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class CommitGroup(Request[CommittedView], frozen=True, kw_only=True):
    """Commit offsets: of a member those named, or everything that it polled so far; or of a group without members."""

    group: GroupId
    member_id: Annotated[
        MemberId | None, Meta(description="Without it, for a group that has no members, and `offsets` is needed.")
    ] = None
    offsets: Annotated[list[CommitItem], Meta(min_length=1, max_length=limits.OFFSETS_COMMITTED_MAX)] | None = None
    generation: Generation = None
    last_poll: LastPoll = None


@operation(
    "POST /v1/groups/{group}/heartbeat",
    tag="groups",
    needs=_MEMBER,
    repeat=Repeat.SAME,
    errors=_MEMBER_ERRORS,
    where=_AT_COORDINATOR,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class HeartbeatGroup(Request[MembershipView], frozen=True, kw_only=True):
    """Keep a member's session going while it is busy."""

    group: GroupId
    member_id: MemberId
    generation: Generation = None


@operation(
    "POST /v1/groups/{group}/leave",
    tag="groups",
    needs=_MEMBER,
    repeat=Repeat.SAME,
    errors=_MEMBER_ERRORS,
    where=_AT_COORDINATOR,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class LeaveGroup(Request[None], frozen=True, kw_only=True):
    """Leave a group, so that others take over the partitions at once."""

    group: GroupId
    member_id: MemberId


# -- groups ------------------------------------------------------------------------------------------------------------


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a list. `lag` is the sum over the partitions it has committed for.

    `type` is its protocol (classic or consumer), `kind` what reads by it: the same for Kafka clients, `rest` for
    members that a node hosts for clients of HTTP and gRPC, `queue` for a queue group and `spark` for a Spark query.
    """

    group: str
    type: str
    kind: str
    state: str
    protocol_type: str
    protocol: str | None
    generation: int
    members: int
    lag: int


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A member and what it reads."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    partitions: list[PlaceView]


class OffsetView(msgspec.Struct, frozen=True, kw_only=True):
    """How far the group got in a partition; null where nothing was committed or the partition cannot be reached."""

    topic: str
    partition: int
    committed_offset: int | None
    high_watermark: int | None
    lag: int | None
    metadata: str
    member_id: str | None


class GroupDetail(GroupView, frozen=True, kw_only=True):
    """A group with its members and offsets."""

    member_details: list[MemberView]
    offsets: list[OffsetView]


class GroupList(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[GroupView]


class MoveView(msgspec.Struct, frozen=True, kw_only=True):
    """One offset that is moved; `from_offset` is null where none was committed."""

    topic: str
    partition: int
    from_offset: int | None
    to_offset: int


class ResetResult(GroupDetail, frozen=True, kw_only=True):
    """The group as it is now, and what was moved; after a dry run, what would be."""

    dry_run: bool
    moves: list[MoveView]


class DeletedOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions whose offsets were deleted."""

    deleted: list[PlaceView]


@operation(
    "GET /v1/groups",
    tag="groups",
    needs=Action.DESCRIBE.of(Resource.GROUP),
    repeat=Repeat.SAFE,
    errors=(errors.NotCoordinator,),
)
class ListGroups(Request[GroupList], frozen=True, kw_only=True):
    """Every group, by name."""


@operation(
    "GET /v1/groups/{group}",
    tag="groups",
    needs=Action.DESCRIBE.of(Resource.GROUP, "group"),
    repeat=Repeat.SAFE,
    errors=(errors.GroupNotFound, errors.NotCoordinator),
    where=_AT_COORDINATOR,
)
class DescribeGroup(Request[GroupDetail], frozen=True, kw_only=True):
    """One group with its members, offsets and lag."""

    group: GroupId


@operation(
    "DELETE /v1/groups/{group}",
    tag="groups",
    needs=Action.DELETE.of(Resource.GROUP, "group"),
    repeat=Repeat.SAME,
    errors=(errors.PolicyViolation, errors.GroupNotFound, errors.GroupError, errors.NotCoordinator),
    where=_AT_COORDINATOR,
)
class DeleteGroup(Request[None], frozen=True, kw_only=True):
    """Forget a group without members, and its offsets."""

    group: GroupId


@operation(
    "POST /v1/groups/{group}/reset",
    tag="groups",
    needs=(Action.ALTER.of(Resource.GROUP, "group"), Action.READ.of(Resource.TOPIC, "topic")),
    repeat=Repeat.AGAIN,  # a shift counts from where the offsets are
    errors=(*_MEMBER_ERRORS, errors.OffsetOutOfRange, errors.DiskFull),
    where=_AT_COORDINATOR,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class ResetGroup(Request[ResetResult], frozen=True, kw_only=True):
    """Move the offsets of a group without members. A group that is not there yet is begun, unless `create` is false.

    Exactly one of `to`, `since` and `shift` says where.
    """

    group: GroupId
    topic: TopicName
    partitions: Annotated[list[PartitionIndex], Meta(min_length=1)] | None = None
    to: limits.StartPoint = None
    since: limits.Since = None
    shift: Annotated[
        Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)] | None,
        Meta(description="So many messages on from the committed offset, or back if negative, within the log."),
    ] = None
    dry_run: Annotated[bool, Meta(description="Only tell what would be moved.")] = False
    create: Annotated[bool, Meta(description="Whether to begin a group that is not there.")] = True


@operation(
    "DELETE /v1/groups/{group}/offsets",
    tag="groups",
    needs=Action.DELETE.of(Resource.GROUP, "group"),
    repeat=Repeat.SAME,
    errors=(errors.PolicyViolation, errors.GroupNotFound, errors.GroupError, errors.NotCoordinator),
    where=_AT_COORDINATOR,
)
class DeleteGroupOffsets(Request[DeletedOffsets], frozen=True, kw_only=True):
    """Forget a group's offsets in a topic that none of its members read."""

    group: GroupId
    topic: Annotated[str, Meta(min_length=1, description="Whose offsets to delete; the topic itself may be gone.")]
    partitions: Annotated[
        Annotated[str, Meta(pattern=r"^\d{1,9}(,\d{1,9})*$")] | None,
        Meta(description="Only these, such as 0,2; without it, all of the topic's."),
    ] = None


# -- readers that plan their own work, such as Spark -------------------------------------------------------------------


class KnownOffset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the caller knows a partition."""

    topic: str
    partition: PartitionIndex
    offset: Offset


class PartitionEnds(msgspec.Struct, frozen=True, kw_only=True):
    """How far a partition reaches; null where its leader does not answer.

    `located` are the offsets of the instants asked for; where nothing is as late as that, the end.
    """

    partition: int
    log_start_offset: int | None
    log_end_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    size_bytes: int | None
    located: list[int]


class TopicEnds(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: str
    partitions: list[PartitionEnds]


class OffsetsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, by name. `missing` are topics that were named and are not there."""

    topics: list[TopicEnds]
    missing: list[str]


class ReportedOffset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next offset to be read in a partition. With `topic_id`, of that topic and no later one of its name."""

    topic: str
    partition: PartitionIndex
    offset: Offset
    topic_id: str | None = None
    metadata: Annotated[str, Meta(max_length=limits.OFFSET_METADATA_CHARS_MAX)] = ""


class ReportedView(msgspec.Struct, frozen=True, kw_only=True):
    """How many offsets the group has taken over."""

    committed: int


@operation(
    "POST /v1/offsets",
    tag="messages",
    needs=Action.DESCRIBE.of(Resource.TOPIC),
    repeat=Repeat.SAFE,
    errors=(errors.NotLeader,),
)
class FindOffsets(Request[OffsetsAnswer], frozen=True, kw_only=True):
    """Where topics begin and end, all of them in one call, by name or by pattern.

    With `wait_ms`, the answer comes once there is more than `known`, or in the end.
    """

    topics: Annotated[list[str], Meta(max_length=limits.TOPICS_NAMED_MAX)] = []
    pattern: Annotated[
        str | None, Meta(description="An RE2 expression that matches whole names; internal topics are never meant.")
    ] = None
    wait_ms: Annotated[
        int, Meta(ge=0, le=limits.WAIT_MS_MAX, description="How long to wait for more than is known.")
    ] = 0
    known: Annotated[list[KnownOffset], Meta(max_length=limits.OFFSETS_REPORTED_MAX)] = []
    timestamps_ms: Annotated[
        list[Offset],
        Meta(
            max_length=limits.TIMESTAMPS_MAX,
            description="Find the first message at or after each of these instants as well.",
        ),
    ] = []


@operation(
    "POST /v1/groups/{group}/offsets",
    tag="groups",
    needs=_OFFSETS,
    repeat=Repeat.SAME,
    errors=(*_MEMBER_ERRORS, errors.OffsetOutOfRange, errors.DiskFull),
    where=_AT_NEW_COORDINATOR,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class ReportOffsets(Request[ReportedView], frozen=True, kw_only=True):
    """Say how far a reader that plans its own work got: a group without members, with a lag."""

    group: GroupId
    offsets: Annotated[list[ReportedOffset], Meta(min_length=1, max_length=limits.OFFSETS_REPORTED_MAX)]
