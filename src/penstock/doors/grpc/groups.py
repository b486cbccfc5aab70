"""Consumer groups over gRPC: join, poll, commit, heartbeat, leave. The members themselves live in the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.fields import INT32_MAX, duration_ms, needed, whole
from penstock.doors.grpc.messages import stored_view, views_of
from penstock.doors.grpc.method import Method, Unary
from penstock.doors.grpc.statuses import InvalidArgument
from penstock.errors import OffsetOutOfRange
from penstock.features.groups.hosted.member import MemberStanding, OffsetToCommit, Polled
from penstock.features.groups.hosted.seat import Wish
from penstock.features.groups.messages import CommitOffsets, MemberIdentity, OffsetCommit, check_committable
from penstock.grpc.generated import groups_pb2
from penstock.grpc.generated.message_pb2 import LogEnd
from penstock.machines.addresses import CoordinatorAddress, group_address

_WAIT_MS_MAX: Final = 30_000
_SESSION_TIMEOUT_MS: Final = 30_000
_TOPICS_MAX: Final = 1_000
_OFFSETS_MAX: Final = 10_000
_POLL_BYTES: Final = 3 * 1024 * 1024
_POLL_BYTES_MAX: Final = 64 * 1024 * 1024
# So long before the client gives up the answer has to be on its way.
_MARGIN_MS: Final = 100

AnyRequest = (
    groups_pb2.JoinRequest
    | groups_pb2.PollRequest
    | groups_pb2.CommitRequest
    | groups_pb2.HeartbeatRequest
    | groups_pb2.LeaveRequest
)


def home(request: AnyRequest) -> CoordinatorAddress:
    """Members live where their group is coordinated."""
    return group_address(needed(request.group, "group"))


def home_of_new(request: AnyRequest) -> CoordinatorAddress:
    """The same where the group may be the first of all."""
    return group_address(needed(request.group, "group"), makes=True)


async def join(door: Door, call: Call, request: groups_pb2.JoinRequest) -> groups_pb2.Membership:
    if not 1 <= len(request.topics) <= _TOPICS_MAX:
        raise InvalidArgument(f"topics has {len(request.topics)} entries; it takes 1 to {_TOPICS_MAX}.")
    timeout_ms = _SESSION_TIMEOUT_MS
    if request.HasField("session_timeout"):
        timeout_ms = duration_ms(request.session_timeout, "session_timeout", low_ms=1, high_ms=INT32_MAX)
    wish = Wish(
        topics=frozenset(request.topics),
        session_timeout_ms=timeout_ms,
        instance_id=request.instance_id or None,
        client_id=request.client_id,
        client_host=f"/{call.client_host}" if call.client_host else "",
        reset="latest" if request.auto_offset_reset == LogEnd.LOG_END_LATEST else "earliest",
        commits_itself=request.auto_commit,
    )
    wait_ms = _wait_ms(call, request)
    standing = await door.unless_stopping(door.hosted.join(request.group, wish, request.member_id, wait_ms / 1000))
    return _standing(request.group, standing)


async def poll(door: Door, call: Call, request: groups_pb2.PollRequest) -> groups_pb2.PollResponse:
    limit = whole(request.max_messages, "max_messages", low=1, high=10_000, default=100)
    max_bytes = whole(request.max_bytes, "max_bytes", low=1, high=_POLL_BYTES_MAX, default=_POLL_BYTES)
    last_poll = None
    if request.HasField("last_poll"):
        last_poll = whole(request.last_poll, "last_poll", high=(1 << 63) - 1)
    wait_ms = _wait_ms(call, request)
    with door.hosted.using(request.group, needed(request.member_id, "member_id")) as member:
        polled = await door.unless_stopping(member.poll(limit, max_bytes, wait_ms / 1000, last_poll))
        if call.is_gone:
            member.take_back(polled)
            raise asyncio.CancelledError
    return await _polled(request.group, polled)


async def commit(door: Door, _call: Call, request: groups_pb2.CommitRequest) -> groups_pb2.CommitResponse:
    offsets = _offsets_of(request) if request.offsets else None
    if not request.member_id:
        if offsets is None:
            raise InvalidArgument("offsets is missing; without a member_id nothing is known to have been polled.")
        await _commit_for_nobody(door, request.group, offsets)
        return groups_pb2.CommitResponse(offsets=request.offsets)
    generation = request.generation if request.HasField("generation") else None
    last_poll = request.last_poll if request.HasField("last_poll") else None
    if offsets is not None and last_poll is not None:
        raise InvalidArgument("Give either offsets or last_poll.")
    with door.hosted.using(request.group, request.member_id) as member:
        committed = await member.commit(offsets, generation, last_poll)
    return groups_pb2.CommitResponse(offsets=[groups_pb2.OffsetCommit(**offset._asdict()) for offset in committed])


def _offsets_of(request: groups_pb2.CommitRequest) -> list[OffsetToCommit]:
    if len(request.offsets) > _OFFSETS_MAX:
        raise InvalidArgument(f"offsets has {len(request.offsets)} entries; it takes up to {_OFFSETS_MAX}.")
    found = [
        OffsetToCommit(
            needed(item.topic, f"offsets[{at}].topic"),
            whole(item.partition, f"offsets[{at}].partition"),
            whole(item.offset, f"offsets[{at}].offset", high=(1 << 63) - 1),
            item.metadata,
        )
        for at, item in enumerate(request.offsets)
    ]
    if len({(item.topic, item.partition) for item in found}) < len(found):
        raise InvalidArgument("offsets names a partition twice; each can be committed once in a call.")
    return found


async def _commit_for_nobody(door: Door, group: str, offsets: list[OffsetToCommit]) -> None:
    """Commit for a group without members, all or nothing; the group refuses it if it has some."""
    broker = door.broker
    extents = await broker.partitions.extents([(item.topic, item.partition) for item in offsets])
    commits: list[OffsetCommit] = []
    for item in offsets:
        assigned = broker.metadata.partition(item.topic, item.partition)
        extent = extents.get((item.topic, item.partition))
        if extent is not None and item.offset > extent.log_end_offset:
            name = f"{item.topic}-{item.partition}"
            raise OffsetOutOfRange(f"{name} ends at {extent.log_end_offset}, before {item.offset}.")
        check_committable(item.offset)
        topic_id = broker.metadata.topic(item.topic).topic_id.hex
        commits.append(
            OffsetCommit(item.topic, item.partition, item.offset, assigned.leader_epoch, item.metadata, topic_id)
        )
    settled = await broker.groups.ask(group, CommitOffsets(MemberIdentity(member_id=""), tuple(commits)))
    for error in settled.refused.values():
        raise error


async def heartbeat(door: Door, _call: Call, request: groups_pb2.HeartbeatRequest) -> groups_pb2.Membership:
    generation = request.generation if request.HasField("generation") else None
    with door.hosted.using(request.group, needed(request.member_id, "member_id")) as member:
        return _standing(request.group, member.heartbeat(generation))


async def leave(door: Door, _call: Call, request: groups_pb2.LeaveRequest) -> groups_pb2.LeaveResponse:
    await door.hosted.leave(request.group, needed(request.member_id, "member_id"))
    return groups_pb2.LeaveResponse()


METHODS: Final[Mapping[str, Method]] = {
    "Join": Unary(join, home_of_new),
    "Poll": Unary(poll, home),
    "Commit": Unary(commit, home_of_new),
    "Heartbeat": Unary(heartbeat, home),
    "Leave": Unary(leave, home),
}


def _wait_ms(call: Call, request: groups_pb2.JoinRequest | groups_pb2.PollRequest) -> int:
    wait_ms = _WAIT_MS_MAX
    if request.HasField("wait"):
        wait_ms = duration_ms(request.wait, "wait", high_ms=_WAIT_MS_MAX)
    return call.milliseconds_left(wait_ms, _MARGIN_MS)


def _standing(group: str, standing: MemberStanding) -> groups_pb2.Membership:
    return groups_pb2.Membership(
        group=group,
        member_id=standing.member_id,
        generation=standing.generation,
        is_rebalancing=not standing.is_settled,
        partitions=[groups_pb2.TopicPartition(topic=topic, partition=index) for topic, index in standing.places],
    )


async def _polled(group: str, polled: Polled) -> groups_pb2.PollResponse:
    return groups_pb2.PollResponse(
        membership=_standing(group, polled.standing),
        poll=polled.number,
        is_rebalanced=polled.is_rebalanced,
        messages=[
            view
            for (topic, index), records in polled.messages
            for view in await views_of(partial(stored_view, topic, index), records)
        ],
    )
