"""Consumer groups over REST: looked at, moved and deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from penstock.broker.groups.either import AnyGroup
from penstock.broker.groups.group import Group
from penstock.broker.groups.messages import Delete
from penstock.broker.groups.report import Progress, Shift, delete_offsets, progress_of, reset_offsets
from penstock.broker.membership.embedded import assigned_to
from penstock.broker.queues.leading.commits import QUEUE_MARK
from penstock.broker.starts import Since, Start
from penstock.errors import GroupNotFound, InvalidRequest
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, no_content
from penstock.http.forwarding import gather
from penstock.http.homes import coordinators, is_forwarded
from penstock.http.message_types import PartitionIndex
from penstock.model import OFFSETS_TOPIC

_MARKS: Final = frozenset({QUEUE_MARK, "spark"})  # metadata of offsets that queue groups and Spark queries commit


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


class PlaceView(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int


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


class ResetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to move the group's offsets in a topic: exactly one of `to`, `since` and `shift`."""

    topic: str
    partitions: Annotated[list[PartitionIndex], Meta(min_length=1)] | None = None
    to: Annotated[
        Annotated[int, Meta(ge=0)] | Literal["earliest", "latest"] | None,
        Meta(description="An offset, earliest, or latest."),
    ] = None
    since: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="The first message at or after this instant (RFC 3339)."),
    ] = None
    shift: Annotated[
        Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)] | None,
        Meta(description="So many messages on from the committed offset, or back if negative, within the log."),
    ] = None
    dry_run: Annotated[bool, Meta(description="Only tell what would be moved.")] = False
    create: Annotated[bool, Meta(description="Whether to begin a group that is not there.")] = True


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


class OffsetsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: Annotated[str, Meta(min_length=1, description="Whose offsets to delete; the topic itself may be gone.")]
    partitions: Annotated[
        Annotated[str, Meta(pattern=r"^\d{1,9}(,\d{1,9})*$")] | None,
        Meta(description="Only these, such as 0,2; without it, all of the topic's."),
    ] = None


class DeletedOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions whose offsets were deleted."""

    deleted: list[PlaceView]


async def list_groups(door: Door, call: Call[None, None]) -> GroupList:
    """Every group, by name."""
    groups = door.broker.groups.all_groups()
    progress = await progress_of(door.broker, groups)
    views = [_view(door, group, rows) for group, rows in zip(groups, progress, strict=True)]
    if not is_forwarded(call.scope):
        for other in await gather(door, call, coordinators(door, OFFSETS_TOPIC), GroupList):
            views += other.groups
    return GroupList(groups=sorted(views, key=lambda view: view.group))


async def describe_group(door: Door, call: Call[None, None]) -> GroupDetail:
    """One group with its members, offsets and lag."""
    return await _detail(door, _find(door, call))


async def delete_group(door: Door, call: Call[None, None]) -> Reply:
    """Forget a group without members, and its offsets."""
    await door.broker.groups.ask(_find(door, call).id, Delete())
    return no_content()


async def reset_group(door: Door, call: Call[ResetRequest, None]) -> ResetResult:
    """Move the offsets of a group without members. A group that is not there yet is begun, unless `create` is false."""
    body, group_id = call.body, group_of(call)
    target = _target(body)
    if not body.create:
        _find(door, call)
    if not body.dry_run:
        await door.broker.ensure_offsets_topic()
    moves = await reset_offsets(door.broker, group_id, body.topic, body.partitions, target, is_dry=body.dry_run)
    group = door.broker.groups.find(group_id) if door.broker.has_groups else None
    detail = await _detail(door, group or Group(group_id, door.broker.config.groups))
    return ResetResult(
        **{name: getattr(detail, name) for name in detail.__struct_fields__},
        dry_run=body.dry_run,
        moves=[MoveView(**move._asdict()) for move in moves],
    )


def _target(body: ResetRequest) -> Start | Shift:
    given = [value for value in (body.to, body.since, body.shift) if value is not None]
    if len(given) != 1:
        raise InvalidRequest("Give one of `to` (an offset, earliest or latest), `since` (an instant) and `shift`.")
    if body.since is not None:
        return Since(int(body.since.timestamp() * 1000))
    if body.shift is not None:
        return Shift(body.shift)
    assert body.to is not None
    return body.to


async def delete_group_offsets(door: Door, call: Call[None, OffsetsQuery]) -> DeletedOffsets:
    """Forget a group's offsets in a topic that none of its members read."""
    listed = call.query.partitions
    indexes = None if listed is None else [int(text) for text in listed.split(",")]
    places = await delete_offsets(door.broker, _find(door, call), call.query.topic, indexes)
    return DeletedOffsets(deleted=[PlaceView(topic=topic, partition=index) for topic, index in places])


def group_of(call: Call[Any, Any]) -> str:
    """The group that a call's path names."""
    group_id: str = call.scope["path_params"]["group"]
    return group_id


def _find(door: Door, call: Call[Any, Any]) -> AnyGroup:
    group_id = group_of(call)
    is_possible = door.broker.has_groups
    group = door.broker.groups.find(group_id) if is_possible else None
    if group is None:
        raise GroupNotFound(f"There is no group {group_id!r}.")
    return group


async def _detail(door: Door, group: AnyGroup) -> GroupDetail:
    (progress,) = await progress_of(door.broker, [group])
    return GroupDetail(
        **msgspec.structs.asdict(_view(door, group, progress)),
        member_details=[
            MemberView(
                member_id=member.id,
                instance_id=member.instance_id,
                client_id=member.facts.client_id,
                client_host=member.facts.client_host,
                partitions=[
                    PlaceView(topic=topic, partition=index) for topic, index in assigned_to(member.facts.assignment)
                ],
            )
            for member in group.members
        ],
        offsets=[OffsetView(**row._asdict()) for row in progress],
    )


def _kind_of(door: Door, group: AnyGroup, progress: list[Progress]) -> str:
    if group.members:
        hosted = door.broker.hosted_members
        return "rest" if any((group.id, member.id) in hosted for member in group.members) else group.kind
    marks = {row.metadata for row in progress if row.committed_offset is not None}
    (mark,) = marks if len(marks) == 1 else ("",)
    return mark if mark in _MARKS else group.kind


def _view(door: Door, group: AnyGroup, progress: list[Progress]) -> GroupView:
    return GroupView(
        group=group.id,
        type=group.kind,
        kind=_kind_of(door, group, progress),
        state=group.state.value,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        generation=group.generation,
        members=len(group.members),
        lag=sum(row.lag or 0 for row in progress),
    )
