"""FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from typing import Final
from uuid import uuid4

import msgspec

from penstock.broker.coordination.coordinator import shard_of
from penstock.broker.groups.group import Group, State
from penstock.broker.groups.members import Member
from penstock.broker.groups.messages import Delete, Join, Leave, MemberIdentity, Promised, Sync
from penstock.errors import CoordinatorLoading, InvalidRequest, PenstockError, RebalanceInProgress
from penstock.kafka.errors import error_code
from penstock.kafka.exchange import Exchange
from penstock.kafka.handlers.access import GROUP_OPERATIONS
from penstock.kafka.handlers.table import Handler
from penstock.kafka.protocol import group_messages as wire
from penstock.kafka.protocol.broker_messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from penstock.kafka.protocol.errors import ErrorCode

_KEY_GROUP: Final = 0
_KEY_TRANSACTION: Final = 1
_DEAD: Final = "Dead"  # how Kafka calls a group that nobody knows
_FIRST_MANY_KEYS_VERSION: Final = 4
_FIRST_ID_FIRST_VERSION: Final = 4  # from here on a joining member can be sent away with an id (KIP-394)
_FIRST_NULL_PROTOCOL_VERSION: Final = 7
_FIRST_SKIP_ASSIGNMENT_VERSION: Final = 9
_FIRST_MANY_LEAVERS_VERSION: Final = 3
_FIRST_NOT_FOUND_VERSION: Final = 6


async def find_coordinator(exchange: Exchange, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Versions 0 to 4. From 4 on one request asks for many keys."""
    has_many = exchange.version >= _FIRST_MANY_KEYS_VERSION
    keys = request.coordinator_keys if has_many else (request.key,)
    found = tuple([await _find_coordinator(exchange, key, request.key_type) for key in keys])
    if has_many:
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
    if key_type not in (_KEY_GROUP, _KEY_TRANSACTION):
        error = InvalidRequest(f"Coordinators of type {key_type} are not known here; groups are 0, transactions 1.")
        return _no_coordinator(key, error_code(error), error.message)
    try:
        is_group = key_type == _KEY_GROUP
        topic = await (broker.ensure_offsets_topic() if is_group else broker.ensure_transactions_topic())
    except PenstockError as error:  # whatever it is, clients know to try again after this code only
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    partition = topic.partitions[shard_of(key, len(topic.partitions))]
    node = broker.metadata.nodes.get(partition.leader)
    if node is None or node.is_fenced:
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "Its partition has no leader now.")
    if partition.leader == broker.config.node_id:
        await (broker.groups if is_group else broker.transactions).await_shard(
            key
        )  # rather than send the client away first
    host, port = exchange.address_of(node)
    return Coordinator(key=key, node_id=node.node_id, host=host, port=port, error_code=ErrorCode.NONE)


def _no_coordinator(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)


async def join_group(exchange: Exchange, request: wire.JoinGroupRequest) -> wire.JoinGroupResponse:
    """Versions 0 to 9. From 1 on with a rebalance timeout, from 5 on with static members."""
    timeout_ms = request.session_timeout_ms if exchange.version == 0 else request.rebalance_timeout_ms
    client_id = exchange.client_id or ""
    join = Join(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=client_id,
        client_host=f"/{exchange.peer_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        fresh_id=f"{request.group_instance_id or client_id or 'member'}-{uuid4()}",
        takes_id_first=exchange.version >= _FIRST_ID_FIRST_VERSION,
        can_skip_assignment=exchange.version >= _FIRST_SKIP_ASSIGNMENT_VERSION,
    )
    try:
        answer = await exchange.broker.groups.ask(request.group_id, join)
    except PenstockError as error:
        return _not_joined(exchange, request.member_id, error_code(error))
    if isinstance(answer, Promised):
        return _not_joined(exchange, answer.member_id, ErrorCode.MEMBER_ID_REQUIRED)
    return wire.JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        leader=answer.leader_id,
        skip_assignment=answer.skips_assignment,
        member_id=answer.member_id,
        members=tuple(
            wire.JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in answer.members
        ),
    )


def _not_joined(exchange: Exchange, member_id: str, code: ErrorCode) -> wire.JoinGroupResponse:
    return wire.JoinGroupResponse(
        error_code=code,
        protocol_name=None if exchange.version >= _FIRST_NULL_PROTOCOL_VERSION else "",
        leader="",
        member_id=member_id,
        members=(),
    )


async def sync_group(exchange: Exchange, request: wire.SyncGroupRequest) -> wire.SyncGroupResponse:
    """Versions 0 to 5. From 5 on both sides name the protocol, so that a mix-up is noticed."""
    sync = Sync(
        identity=MemberIdentity(
            member_id=request.member_id, instance_id=request.group_instance_id, generation=request.generation_id
        ),
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple((given.member_id, given.assignment) for given in request.assignments),
    )
    try:
        answer = await exchange.broker.groups.ask(request.group_id, sync)
    except CoordinatorLoading:
        # The round is lost with the memory it was in; older clients do not expect to hear that the log is being read.
        return wire.SyncGroupResponse(error_code=error_code(RebalanceInProgress()), assignment=b"")
    except PenstockError as error:
        return wire.SyncGroupResponse(error_code=error_code(error), assignment=b"")
    return wire.SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


def heartbeat(exchange: Exchange, request: wire.HeartbeatRequest) -> wire.HeartbeatResponse:
    """Versions 0 to 4."""
    identity = MemberIdentity(
        member_id=request.member_id, instance_id=request.group_instance_id, generation=request.generation_id
    )
    code = ErrorCode.NONE
    try:
        exchange.broker.groups.heartbeat(request.group_id, identity)
    except CoordinatorLoading:
        pass  # Java's client takes this answer for fatal; sessions start when the log is read, so nothing is missed
    except PenstockError as error:
        code = error_code(error)
    return wire.HeartbeatResponse(error_code=code)


async def leave_group(exchange: Exchange, request: wire.LeaveGroupRequest) -> wire.LeaveGroupResponse:
    """Versions 0 to 5. From 3 on many members can be removed at once, static ones by their instance."""
    has_many = exchange.version >= _FIRST_MANY_LEAVERS_VERSION
    members = request.members if has_many else (wire.MemberIdentity(member_id=request.member_id),)
    leave = Leave(tuple(MemberIdentity(member_id=one.member_id, instance_id=one.group_instance_id) for one in members))
    try:
        answer = await exchange.broker.groups.ask(request.group_id, leave)
    except PenstockError as error:
        return wire.LeaveGroupResponse(error_code=error_code(error))
    codes = [ErrorCode.NONE if error is None else error_code(error) for error in answer.errors]
    if not has_many:
        return wire.LeaveGroupResponse(error_code=codes[0])
    return wire.LeaveGroupResponse(
        error_code=ErrorCode.NONE,
        members=tuple(
            wire.MemberResponse(member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=code)
            for one, code in zip(members, codes, strict=True)
        ),
    )


def describe_groups(exchange: Exchange, request: wire.DescribeGroupsRequest) -> wire.DescribeGroupsResponse:
    """Versions 0 to 6. A group nobody knows, or of the new protocol, is described as dead; from 6 on it is an error."""
    described = [_describe(exchange, group_id) for group_id in request.groups]
    if request.include_authorized_operations:
        described = [
            group if group.error_code else msgspec.structs.replace(group, authorized_operations=GROUP_OPERATIONS)
            for group in described
        ]
    return wire.DescribeGroupsResponse(groups=tuple(described))


def _describe(exchange: Exchange, group_id: str) -> wire.DescribedGroup:
    try:
        group = exchange.broker.groups.find(group_id)
    except PenstockError as error:
        return _described(group_id, error_code(error), "")
    if not isinstance(group, Group):
        return _unknown(exchange, group_id, "not found" if group is None else "is not a classic group")
    is_settled = group.state is State.STABLE
    return wire.DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol or "") if is_settled else "",
        members=tuple(_describe_member(group, member, is_settled=is_settled) for member in group.members),
    )


def _described(group_id: str, code: ErrorCode, state: str) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        error_code=code, group_id=group_id, group_state=state, protocol_type="", protocol_data="", members=()
    )


def _unknown(exchange: Exchange, group_id: str, what: str) -> wire.DescribedGroup:
    """A group that nobody knows by this protocol: dead to older clients, an error to those that expect one."""
    if exchange.version < _FIRST_NOT_FOUND_VERSION:
        return _described(group_id, ErrorCode.NONE, _DEAD)
    return wire.DescribedGroup(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {group_id} {what}.",
        group_id=group_id,
        group_state=_DEAD,
        protocol_type="",
        protocol_data="",
        members=(),
    )


def _describe_member(group: Group, member: Member, *, is_settled: bool) -> wire.DescribedGroupMember:
    return wire.DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.facts.client_id,
        client_host=member.facts.client_host,
        member_metadata=member.metadata(group.protocol or "") if is_settled else b"",
        member_assignment=member.facts.assignment if is_settled else b"",
    )


def list_groups(exchange: Exchange, request: wire.ListGroupsRequest) -> wire.ListGroupsResponse:
    """Versions 0 to 5. From 4 on filtered by state, from 5 on by type; classic or consumer."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    try:
        groups = exchange.broker.groups.all_groups()
    except PenstockError as error:
        return wire.ListGroupsResponse(error_code=error_code(error), groups=())
    return wire.ListGroupsResponse(
        error_code=ErrorCode.NONE,
        groups=tuple(
            wire.ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type=group.kind,
            )
            for group in groups
            if (not states or group.state.value.lower() in states) and (not types or group.kind in types)
        ),
    )


async def delete_groups(exchange: Exchange, request: wire.DeleteGroupsRequest) -> wire.DeleteGroupsResponse:
    """Versions 0 to 2."""
    results = []
    for group_id in request.groups_names:
        code = ErrorCode.NONE
        try:
            await exchange.broker.groups.ask(group_id, Delete())
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
