"""Consumer groups over REST: looked at, moved and deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.broker.groups.group import Group
from penstock.broker.groups.messages import Delete
from penstock.broker.groups.report import Progress, assigned_to, progress_of, reset_offsets
from penstock.broker.reading import Since
from penstock.errors import GroupNotFound, InvalidRequest
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, no_content


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a list. `lag` is the sum over the partitions it has committed for."""

    group: str
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
    """How far the group got in a partition; null where nothing was committed or the partition is not here."""

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
    """Where to move the group's offsets in a topic: exactly one of `to` and `since`."""

    topic: str
    partitions: Annotated[list[int], Meta(min_length=1)] | None = None
    to: Annotated[
        Annotated[int, Meta(ge=0)] | Literal["earliest", "latest"] | None,
        Meta(description="An offset, earliest, or latest."),
    ] = None
    since: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="The first message at or after this instant (RFC 3339)."),
    ] = None


async def list_groups(door: Door, _call: Call[None, None]) -> GroupList:
    """Every group, by name."""
    groups = sorted(door.broker.groups.all_groups(), key=lambda group: group.id)
    return GroupList(groups=[_view(group, progress_of(door.broker, group)) for group in groups])


async def describe_group(door: Door, call: Call[None, None]) -> GroupDetail:
    """One group with its members, offsets and lag."""
    return _detail(door, _find(door, call))


async def delete_group(door: Door, call: Call[None, None]) -> Reply:
    """Forget a group without members, and its offsets."""
    await door.broker.groups.ask(_find(door, call).id, Delete())
    return no_content()


async def reset_group(door: Door, call: Call[ResetRequest, None]) -> GroupDetail:
    """Move the offsets of a group without members. A group that is not there yet is begun."""
    body = call.body
    if (body.to is None) == (body.since is None):
        raise InvalidRequest("Give either `to` (an offset, earliest or latest) or `since` (an instant).")
    target = Since(int(body.since.timestamp() * 1000)) if body.since is not None else body.to
    assert target is not None
    await door.broker.ensure_offsets_topic()
    await reset_offsets(door.broker, _group_id(call), body.topic, body.partitions, target)
    return _detail(door, _find(door, call))


def _group_id(call: Call[ResetRequest, None] | Call[None, None]) -> str:
    group_id: str = call.scope["path_params"]["group"]
    return group_id


def _find(door: Door, call: Call[ResetRequest, None] | Call[None, None]) -> Group:
    group_id = _group_id(call)
    is_possible = door.broker.has_groups
    group = door.broker.groups.find(group_id) if is_possible else None
    if group is None:
        raise GroupNotFound(f"There is no group {group_id!r}.")
    return group


def _detail(door: Door, group: Group) -> GroupDetail:
    progress = progress_of(door.broker, group)
    return GroupDetail(
        **msgspec.structs.asdict(_view(group, progress)),
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


def _view(group: Group, progress: list[Progress]) -> GroupView:
    return GroupView(
        group=group.id,
        state=group.state.value,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        generation=group.generation,
        members=len(group.members),
        lag=sum(row.lag or 0 for row in progress),
    )
