"""Membership in a group over REST: join, poll, commit, heartbeat, leave. The members themselves live in the broker."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from penstock.broker.membership.member import OffsetToCommit, Polled, Standing
from penstock.broker.membership.seat import Wish
from penstock.errors import InvalidRequest
from penstock.http.binary import polled_reply
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, no_content
from penstock.http.groups import PlaceView, group_of
from penstock.http.message_types import DeliveredMessage, PartitionIndex, view_of
from penstock.http.waiting import Waiting

_WAIT_MS_MAX: Final = 30_000
_SESSION_TIMEOUT_MS: Final = 30_000
_NAMES_MAX: Final = 1_000
_OFFSETS_MAX: Final = 10_000

State = Literal["stable", "rebalancing"]
Name = Annotated[str, Meta(min_length=1, max_length=249)]
MemberId = Annotated[str, Meta(min_length=1, max_length=1_000, description="As the answer to join has it.")]
Generation = Annotated[
    int | None, Meta(description="If given, the call is refused unless the member is in this generation.")
]
WaitMs = Annotated[int, Meta(ge=0, le=_WAIT_MS_MAX)]
LastPoll = Annotated[
    Annotated[int, Meta(ge=0)] | None,
    Meta(description="The number (`poll`) of the last answer that arrived; 0 if none did."),
]


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A wish to be a member of a group."""

    topics: Annotated[list[Name], Meta(min_length=1, max_length=_NAMES_MAX)]
    member_id: Annotated[
        MemberId | None, Meta(description="To join again as the same member, with other topics or after a restart.")
    ] = None
    instance_id: Annotated[
        Name | None, Meta(description="Names a static member: who joins with it takes its predecessor's place.")
    ] = None
    client_id: Annotated[str, Meta(max_length=249, description="Shown where the group is described.")] = ""
    session_timeout_ms: Annotated[
        int, Meta(ge=1, le=(1 << 31) - 1, description="After this long without a call the member is out.")
    ] = _SESSION_TIMEOUT_MS
    auto_offset_reset: Annotated[
        Literal["earliest", "latest"], Meta(description="Where to begin in partitions without a committed offset.")
    ] = "earliest"
    auto_commit: Annotated[bool, Meta(description="Whether each poll commits what the one before it returned.")] = False
    wait_ms: Annotated[WaitMs, Meta(description="How long to wait until the group has settled.")] = _WAIT_MS_MAX


class PollRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    member_id: MemberId
    max_messages: Annotated[int, Meta(ge=1, le=10_000)] = 100
    max_bytes: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Of keys and values, about; one message is returned however large it is."),
    ] = None
    wait_ms: Annotated[WaitMs, Meta(description="How long to wait if there is no message yet.")] = _WAIT_MS_MAX
    last_poll: LastPoll = None


class CommitItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The offset of the next message to be read, one more than that of the last one done."""

    topic: Name
    partition: PartitionIndex
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    metadata: str = ""


class CommitRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to commit: `offsets`, or without them everything that was polled so far."""

    member_id: MemberId
    offsets: Annotated[list[CommitItem], Meta(min_length=1, max_length=_OFFSETS_MAX)] | None = None
    generation: Generation = None
    last_poll: LastPoll = None


class HeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    member_id: MemberId
    generation: Generation = None


class LeaveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    member_id: MemberId


class MembershipView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member stands. While its group is rebalancing it gets no messages; it should poll to take part."""

    group: str
    member_id: str
    generation: int
    state: State
    partitions: list[PlaceView]


class PolledView(MembershipView, frozen=True, kw_only=True):
    """Messages, in order within each partition. `rebalanced` tells that the partitions are others than last time."""

    poll: int
    rebalanced: bool
    messages: list[DeliveredMessage]


class CommittedView(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed now that was not before."""

    offsets: list[CommitItem]


async def join_group(door: Door, call: Call[JoinRequest, None]) -> MembershipView:
    """Become a member of a group, and answer when it has settled, or after `wait_ms`."""
    body, group_id = call.body, group_of(call)
    wish = Wish(
        topics=frozenset(body.topics),
        session_timeout_ms=body.session_timeout_ms,
        instance_id=body.instance_id,
        client_id=body.client_id,
        client_host=f"/{call.client_host}" if call.client_host else "",
        reset=body.auto_offset_reset,
        commits_itself=body.auto_commit,
    )
    joining = door.hosted.join(group_id, wish, body.member_id or "", body.wait_ms / 1000)
    async with Waiting(door, call, joining) as waiting:
        return MembershipView(**_standing(group_id, await waiting.result()))


async def poll_group(door: Door, call: Call[PollRequest, None]) -> PolledView | Reply:
    """Get the next messages of a member's partitions, waiting for them up to `wait_ms`."""
    body, group_id = call.body, group_of(call)
    max_bytes = min(body.max_bytes or door.config.read_bytes_max, door.config.read_bytes_max)
    with door.hosted.using(group_id, body.member_id) as member:
        wait_seconds, is_raw = body.wait_ms / 1000, call.wants_binary
        polling = member.poll(body.max_messages, max_bytes, wait_seconds, body.last_poll, is_raw=is_raw)
        async with Waiting(door, call, polling) as waiting:
            polled = await waiting.result()
            if waiting.is_client_gone:
                member.take_back(polled)
    return polled_reply(_standing(group_id, polled.standing), polled) if is_raw else _polled(group_id, polled)


async def commit_group(door: Door, call: Call[CommitRequest, None]) -> CommittedView:
    """Commit offsets of a member: those named, or everything that it polled so far."""
    body = call.body
    offsets = None
    if body.offsets is not None:
        if body.last_poll is not None:
            raise InvalidRequest("Give either `offsets` or `last_poll`.")
        if len({(item.topic, item.partition) for item in body.offsets}) < len(body.offsets):
            raise InvalidRequest("Each partition can be committed once in a call.")
        offsets = [OffsetToCommit(item.topic, item.partition, item.offset, item.metadata) for item in body.offsets]
    with door.hosted.using(group_of(call), body.member_id) as member:
        committed = await member.commit(offsets, body.generation, body.last_poll)
    return CommittedView(offsets=[CommitItem(**offset._asdict()) for offset in committed])


async def heartbeat_group(door: Door, call: Call[HeartbeatRequest, None]) -> MembershipView:
    """Keep a member's session going while it is busy."""
    group_id = group_of(call)
    with door.hosted.using(group_id, call.body.member_id) as member:
        return MembershipView(**_standing(group_id, member.heartbeat(call.body.generation)))


async def leave_group(door: Door, call: Call[LeaveRequest, None]) -> Reply:
    """Leave a group, so that others take over the partitions at once."""
    await door.hosted.leave(group_of(call), call.body.member_id)
    return no_content()


def _standing(group_id: str, standing: Standing) -> dict[str, Any]:
    return {
        "group": group_id,
        "member_id": standing.member_id,
        "generation": standing.generation,
        "state": "stable" if standing.is_settled else "rebalancing",
        "partitions": [PlaceView(topic=topic, partition=index) for topic, index in standing.places],
    }


def _polled(group_id: str, polled: Polled) -> PolledView:
    return PolledView(
        **_standing(group_id, polled.standing),
        poll=polled.number,
        rebalanced=polled.is_rebalanced,
        messages=[
            DeliveredMessage(topic=topic, partition=index, **asdict(view_of(record)))
            for (topic, index), records in polled.messages
            for record in records
        ],
    )
