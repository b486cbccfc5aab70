"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.broker.groups.coordinator import shard_of
from penstock.broker.groups.group import Group, Member, State
from penstock.broker.groups.messages import Join, Joined, MemberIdentity, Rejected, Sync, Synced
from penstock.errors import GroupError, InvalidGroupId, InvalidRequest, PenstockError
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol import group_messages as wire
from penstock.kafka.protocol.broker_messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from penstock.kafka.protocol.errors import ErrorCode

T = TypeVar("T")

_KEY_GROUP: Final = 0
_FIRST_ID_FIRST_VERSION: Final = 4  # from here on a joining member can be sent away with an id (KIP-394)


async def find_coordinator(exchange: Exchange, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Versions 0 to 4. From 4 on one request asks for many keys."""
    keys = request.coordinator_keys if exchange.version >= 4 else (request.key,)
    found = tuple([await _find_coordinator(exchange, key, request.key_type) for key in keys])
    if exchange.version >= 4:
        return FindCoordinatorResponse(coordinators=found)
    (only,) = found
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


async def _find_coordinator(exchange: Exchange, key: str, key_type: int) -> Coordinator:
    broker = exchange.broker
    try:
        if key_type != _KEY_GROUP:
            raise InvalidRequest(f"Coordinators of type {key_type} are not known here; groups are type 0.")
        if not key:
            raise InvalidGroupId("A group id must not be empty.")
        topic = await broker.ensure_offsets_topic()
        partition = topic.partitions[shard_of(key, len(topic.partitions))]
        node = broker.metadata.nodes.get(partition.leader)
    except PenstockError as error:
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error_code(error), error_message=error.message
        )
    if node is None:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    host, port = exchange.address_of(node)
    return Coordinator(key=key, node_id=node.node_id, host=host, port=port, error_code=ErrorCode.NONE)


async def join_group(exchange: Exchange, request: wire.JoinGroupRequest) -> wire.JoinGroupResponse:
    """Versions 0 to 9. From 1 on with a rebalance timeout, from 5 on with static members."""
    future: asyncio.Future[Joined | Rejected] = asyncio.get_running_loop().create_future()
    timeout_ms = request.session_timeout_ms if exchange.version == 0 else request.rebalance_timeout_ms
    join = Join(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=exchange.client_id or "",
        client_host=f"/{exchange.peer_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        takes_id_first=exchange.version >= _FIRST_ID_FIRST_VERSION,
    )
    try:
        exchange.broker.groups.join(request.group_id, join, _resolve(future))
    except GroupError as error:
        return _not_joined(exchange, request.member_id, error)
    outcome = await future
    if isinstance(outcome, Rejected):
        return _not_joined(exchange, outcome.member_id or request.member_id, outcome.error)
    return wire.JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=outcome.generation,
        protocol_type=outcome.protocol_type,
        protocol_name=outcome.protocol,
        leader=outcome.leader_id,
        skip_assignment=outcome.skips_assignment,
        member_id=outcome.member_id,
        members=tuple(
            wire.JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in outcome.members
        ),
    )


def _resolve(future: asyncio.Future[T]) -> Callable[[T], None]:
    """Answer once; the client may be gone by then."""

    def resolve(value: T) -> None:
        if not future.done():
            future.set_result(value)

    return resolve


def _not_joined(exchange: Exchange, member_id: str, error: GroupError) -> wire.JoinGroupResponse:
    return wire.JoinGroupResponse(
        error_code=error_code(error),
        protocol_name=None if exchange.version >= 7 else "",
        leader="",
        member_id=member_id,
        members=(),
    )


async def sync_group(exchange: Exchange, request: wire.SyncGroupRequest) -> wire.SyncGroupResponse:
    """Versions 0 to 5. From 5 on both sides name the protocol, so that a mix-up is noticed."""
    future: asyncio.Future[Synced | Rejected] = asyncio.get_running_loop().create_future()
    sync = Sync(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple((given.member_id, given.assignment) for given in request.assignments),
    )
    try:
        exchange.broker.groups.sync(request.group_id, sync, _resolve(future))
    except GroupError as error:
        return wire.SyncGroupResponse(error_code=error_code(error), assignment=b"")
    outcome = await future
    if isinstance(outcome, Rejected):
        return wire.SyncGroupResponse(error_code=error_code(outcome.error), assignment=b"")
    return wire.SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=outcome.protocol_type,
        protocol_name=outcome.protocol,
        assignment=outcome.assignment,
    )


def heartbeat(exchange: Exchange, request: wire.HeartbeatRequest) -> wire.HeartbeatResponse:
    """Versions 0 to 4."""
    identity = MemberIdentity(
        member_id=request.member_id, instance_id=request.group_instance_id, generation=request.generation_id
    )
    try:
        exchange.broker.groups.heartbeat(request.group_id, identity)
    except GroupError as error:
        return wire.HeartbeatResponse(error_code=error_code(error))
    return wire.HeartbeatResponse(error_code=ErrorCode.NONE)


async def leave_group(exchange: Exchange, request: wire.LeaveGroupRequest) -> wire.LeaveGroupResponse:
    """Versions 0 to 5. From 3 on many members can be removed at once, static ones by their instance."""
    if exchange.version < 3:
        outcome = await _leave(exchange, request.group_id, wire.MemberIdentity(member_id=request.member_id))
        return wire.LeaveGroupResponse(error_code=outcome.error_code)
    members = [await _leave(exchange, request.group_id, member) for member in request.members]
    return wire.LeaveGroupResponse(error_code=ErrorCode.NONE, members=tuple(members))


async def _leave(exchange: Exchange, group_id: str, member: wire.MemberIdentity) -> wire.MemberResponse:
    identity = MemberIdentity(member_id=member.member_id, instance_id=member.group_instance_id)
    code = ErrorCode.NONE
    try:
        await exchange.broker.groups.leave(group_id, identity)
    except PenstockError as error:
        code = error_code(error)
    return wire.MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code)


def describe_groups(exchange: Exchange, request: wire.DescribeGroupsRequest) -> wire.DescribeGroupsResponse:
    """Versions 0 to 5. A group nobody knows is described as dead."""
    return wire.DescribeGroupsResponse(groups=tuple(_describe(exchange, group_id) for group_id in request.groups))


def _describe(exchange: Exchange, group_id: str) -> wire.DescribedGroup:
    try:
        group = exchange.broker.groups.find(group_id)
    except GroupError as error:
        return _described(group_id, error_code(error), "", None)
    if group is None:
        return _described(group_id, ErrorCode.NONE, State.DEAD.value, None)
    return _described(group_id, ErrorCode.NONE, group.state.value, group)


def _described(group_id: str, code: ErrorCode, state: str, group: Group | None) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        error_code=code,
        group_id=group_id,
        group_state=state,
        protocol_type=group.protocol_type if group else "",
        protocol_data=(group.protocol or "") if group else "",
        members=tuple(_describe_member(group, member) for member in group.members.values()) if group else (),
    )


def _describe_member(group: Group, member: Member) -> wire.DescribedGroupMember:
    is_settled = group.state is State.STABLE and group.protocol is not None
    return wire.DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol or "") if is_settled else b"",
        member_assignment=member.assignment if is_settled else b"",
    )


def list_groups(exchange: Exchange, request: wire.ListGroupsRequest) -> wire.ListGroupsResponse:
    """Versions 0 to 5. From 4 on filtered by state, from 5 on by type; every group here is a classic one."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    return wire.ListGroupsResponse(
        error_code=ErrorCode.NONE,
        groups=tuple(
            wire.ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type="classic",
            )
            for group in exchange.broker.groups.groups
            if (not states or group.state.value.lower() in states) and (not types or "classic" in types)
        ),
    )


async def delete_groups(exchange: Exchange, request: wire.DeleteGroupsRequest) -> wire.DeleteGroupsResponse:
    """Versions 0 to 2."""
    results = []
    for group_id in request.groups_names:
        code = ErrorCode.NONE
        try:
            await exchange.broker.groups.delete(group_id)
        except PenstockError as error:
            code = error_code(error)
        results.append(wire.DeletableGroupResult(group_id=group_id, error_code=code))
    return wire.DeleteGroupsResponse(results=tuple(results))


HANDLERS = (
    Handler(FindCoordinatorRequest, find_coordinator),
    Handler(wire.JoinGroupRequest, join_group),
    Handler(wire.SyncGroupRequest, sync_group),
    Handler(wire.HeartbeatRequest, heartbeat),
    Handler(wire.LeaveGroupRequest, leave_group),
    Handler(wire.DescribeGroupsRequest, describe_groups),
    Handler(wire.ListGroupsRequest, list_groups),
    Handler(wire.DeleteGroupsRequest, delete_groups),
)
