"""FindCoordinator, classic consumer groups, and groups of the new protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar
from uuid import UUID, uuid4

import msgspec

from penstock.access.acls import AclAction, AclResource
from penstock.doors.kafka.caller import Caller
from penstock.doors.kafka.errors import error_code
from penstock.doors.kafka.handler import Handler, RequestContext
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import groups as wire
from penstock.errors import CoordinatorLoading, GroupNotFound, InvalidRequest, PenstockError, RebalanceInProgress
from penstock.features.groups.consumer.assignors import Place
from penstock.features.groups.consumer.group import ConsumerGroup
from penstock.features.groups.consumer.ledger import to_partitions
from penstock.features.groups.consumer.messages import ConsumerHeartbeat
from penstock.features.groups.consumer.records import StoredConsumer
from penstock.features.groups.group import Group
from penstock.features.groups.members import ClassicMember
from penstock.features.groups.messages import Delete, JoinRequest, Leave, MemberIdentity, Promised, SyncGroup
from penstock.features.groups.states import GroupState
from penstock.machines.leaders import shard_of

_KEY_GROUP: Final = 0
_KEY_TRANSACTION: Final = 1
_DEAD: Final = "Dead"  # Kafka's state of an unknown group
_FIRST_MANY_KEYS_VERSION: Final = 4
_FIRST_ID_FIRST_VERSION: Final = 4  # from here on a joining member can be sent away with an id (KIP-394)
_FIRST_NULL_PROTOCOL_VERSION: Final = 7
_FIRST_SKIP_ASSIGNMENT_VERSION: Final = 9
_FIRST_MANY_LEAVERS_VERSION: Final = 3
_FIRST_NOT_FOUND_VERSION: Final = 6
_FIRST_OWN_ID_VERSION: Final = 1  # from here on members make their own ids
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1

_Described = TypeVar("_Described", wire.DescribedGroup, wire.DescribedConsumerGroup)


async def find_coordinator(
    context: RequestContext, request: wire.FindCoordinatorRequest
) -> wire.FindCoordinatorResponse:
    """Versions 0 to 4. From 4 on one request asks for many keys."""
    has_many = context.version >= _FIRST_MANY_KEYS_VERSION
    keys = request.coordinator_keys if has_many else (request.key,)
    found = tuple([await _find_coordinator(context, key, request.key_type) for key in keys])
    if has_many:
        return wire.FindCoordinatorResponse(coordinators=found)
    (only,) = found
    return wire.FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


async def _find_coordinator(context: RequestContext, key: str, key_type: int) -> wire.Coordinator:
    broker = context.broker
    if key_type not in (_KEY_GROUP, _KEY_TRANSACTION):
        error = InvalidRequest(f"Coordinators of type {key_type} are not known here; groups are 0, transactions 1.")
        return _no_coordinator(key, error_code(error), error.message)
    try:
        is_group = key_type == _KEY_GROUP
        topic = await (broker.ensure_offsets_topic() if is_group else broker.ensure_transactions_topic())
    except PenstockError as error:  # clients try again after this code only
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    partition = topic.partitions[shard_of(key, len(topic.partitions))]
    node = broker.metadata.nodes.get(partition.leader)
    if node is None or node.is_fenced:
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "Its partition has no leader now.")
    if partition.leader == broker.config.node_id:
        # The client would have to try again where the coordinator is still reading its log.
        await (broker.groups if is_group else broker.transactions).await_shard(key)
    host, port = context.address_of(node)
    return wire.Coordinator(key=key, node_id=node.node_id, host=host, port=port, error_code=ErrorCode.NONE)


def _no_coordinator(key: str, code: ErrorCode, message: str) -> wire.Coordinator:
    return wire.Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)


async def join_group(context: RequestContext, request: wire.JoinGroupRequest) -> wire.JoinGroupResponse:
    """Versions 0 to 9. From 1 on with a rebalance timeout, from 5 on with static members."""
    timeout_ms = request.session_timeout_ms if context.version == 0 else request.rebalance_timeout_ms
    client_id = context.client_id or ""
    join = JoinRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=client_id,
        client_host=f"/{context.peer_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        fresh_id=f"{request.group_instance_id or client_id or 'member'}-{uuid4()}",
        takes_id_first=context.version >= _FIRST_ID_FIRST_VERSION,
        can_skip_assignment=context.version >= _FIRST_SKIP_ASSIGNMENT_VERSION,
    )
    try:
        answer = await context.broker.groups.ask(request.group_id, join)
    except PenstockError as error:
        return _not_joined(context, request.member_id, error_code(error))
    if isinstance(answer, Promised):
        return _not_joined(context, answer.member_id, ErrorCode.MEMBER_ID_REQUIRED)
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


def _not_joined(context: RequestContext, member_id: str, code: ErrorCode) -> wire.JoinGroupResponse:
    return wire.JoinGroupResponse(
        error_code=code,
        protocol_name=None if context.version >= _FIRST_NULL_PROTOCOL_VERSION else "",
        leader="",
        member_id=member_id,
        members=(),
    )


async def sync_group(context: RequestContext, request: wire.SyncGroupRequest) -> wire.SyncGroupResponse:
    """Versions 0 to 5. From 5 on both sides name the protocol, so that a mix-up is noticed."""
    sync = SyncGroup(
        identity=MemberIdentity(
            member_id=request.member_id, instance_id=request.group_instance_id, generation=request.generation_id
        ),
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple((given.member_id, given.assignment) for given in request.assignments),
    )
    try:
        answer = await context.broker.groups.ask(request.group_id, sync)
    except CoordinatorLoading:
        # The rebalance is lost with the coordinator's memory; older clients do not expect COORDINATOR_LOAD_IN_PROGRESS.
        return wire.SyncGroupResponse(error_code=error_code(RebalanceInProgress()), assignment=b"")
    except PenstockError as error:
        return wire.SyncGroupResponse(error_code=error_code(error), assignment=b"")
    return wire.SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


def heartbeat(context: RequestContext, request: wire.HeartbeatRequest) -> wire.HeartbeatResponse:
    """Versions 0 to 4."""
    identity = MemberIdentity(
        member_id=request.member_id, instance_id=request.group_instance_id, generation=request.generation_id
    )
    code = ErrorCode.NONE
    try:
        context.broker.groups.heartbeat(request.group_id, identity)
    except CoordinatorLoading:
        pass  # Java's client takes this answer for fatal; sessions start when the log is read, so nothing is missed
    except PenstockError as error:
        code = error_code(error)
    return wire.HeartbeatResponse(error_code=code)


async def leave_group(context: RequestContext, request: wire.LeaveGroupRequest) -> wire.LeaveGroupResponse:
    """Versions 0 to 5. From 3 on many members can be removed at once, static ones by their instance."""
    has_many = context.version >= _FIRST_MANY_LEAVERS_VERSION
    members = request.members if has_many else (wire.MemberIdentity(member_id=request.member_id),)
    leave = Leave(tuple(MemberIdentity(member_id=one.member_id, instance_id=one.group_instance_id) for one in members))
    try:
        answer = await context.broker.groups.ask(request.group_id, leave)
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


def describe_groups(context: RequestContext, request: wire.DescribeGroupsRequest) -> wire.DescribeGroupsResponse:
    """Versions 0 to 6. An unknown group, or one of the new protocol, is described as dead; from 6 on it is an error."""
    described = [_describe(context, group_id) for group_id in request.groups]
    if request.include_authorized_operations:
        described = [_with_operations(context.caller, group) for group in described]
    return wire.DescribeGroupsResponse(groups=tuple(described))


def _with_operations(caller: Caller, group: _Described) -> _Described:
    """A described group with what the client may do with it."""
    if group.error_code:
        return group
    operations = caller.operations(AclResource.GROUP, group.group_id)
    return msgspec.structs.replace(group, authorized_operations=operations)


def _describe(context: RequestContext, group_id: str) -> wire.DescribedGroup:
    try:
        group = context.broker.groups.find(group_id)
    except PenstockError as error:
        return _described(group_id, error_code(error), "")
    if not isinstance(group, Group):
        return _unknown(context, group_id, "not found" if group is None else "is not a classic group")
    is_settled = group.state is GroupState.STABLE
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


def _unknown(context: RequestContext, group_id: str, what: str) -> wire.DescribedGroup:
    """A group that is unknown to this protocol: dead to older clients, an error to those that expect one."""
    if context.version < _FIRST_NOT_FOUND_VERSION:
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


def _describe_member(group: Group, member: ClassicMember, *, is_settled: bool) -> wire.DescribedGroupMember:
    return wire.DescribedGroupMember(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.facts.client_id,
        client_host=member.facts.client_host,
        member_metadata=member.metadata(group.protocol or "") if is_settled else b"",
        member_assignment=member.facts.assignment if is_settled else b"",
    )


def list_groups(context: RequestContext, request: wire.ListGroupsRequest) -> wire.ListGroupsResponse:
    """Versions 0 to 5. From 4 on filtered by state, from 5 on by type; classic or consumer."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    try:
        groups = context.broker.groups.all_groups()
    except PenstockError as error:
        return wire.ListGroupsResponse(error_code=error_code(error), groups=())
    caller = context.caller
    may_all = caller.may_cluster(AclAction.DESCRIBE)
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
            if (not states or group.state.value.lower() in states)
            and (not types or group.kind in types)
            and (may_all or caller.may_group(AclAction.DESCRIBE, group.id))
        ),
    )


async def delete_groups(context: RequestContext, request: wire.DeleteGroupsRequest) -> wire.DeleteGroupsResponse:
    """Versions 0 to 2."""
    results = []
    for group_id in request.groups_names:
        code = ErrorCode.NONE
        try:
            await context.broker.groups.ask(group_id, Delete())
        except PenstockError as error:
            code = error_code(error)
        results.append(wire.DeletableGroupResult(group_id=group_id, error_code=code))
    return wire.DeleteGroupsResponse(results=tuple(results))


# -- groups of the new protocol ----------------------------------------------------------------------------------------


async def consumer_group_heartbeat(
    context: RequestContext, request: wire.ConsumerGroupHeartbeatRequest
) -> wire.ConsumerGroupHeartbeatResponse:
    """Versions 0 to 1. From 1 on with a pattern, and with an id from the first heartbeat on."""
    owned = request.topic_partitions
    heartbeat = ConsumerHeartbeat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        client_id=context.client_id or "",
        client_host=f"/{context.peer_host}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=request.subscribed_topic_names,
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else frozenset((row.topic_id.hex, at) for row in owned for at in row.partitions),
        fresh_id=None if context.version >= _FIRST_OWN_ID_VERSION else str(uuid4()),
    )
    try:
        beat = await context.broker.groups.ask(request.group_id, heartbeat)
    except PenstockError as error:
        return wire.ConsumerGroupHeartbeatResponse(error_code=error_code(error), error_message=error.message)
    return wire.ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=beat.member_id,
        member_epoch=beat.epoch,
        heartbeat_interval_ms=beat.heartbeat_interval_ms,
        assignment=None
        if beat.assignment is None
        else wire.Assignment(topic_partitions=_topic_partitions(beat.assignment)),
    )


def _topic_partitions(places: Iterable[Place]) -> tuple[wire.TopicPartitions, ...]:
    return tuple(
        wire.TopicPartitions(topic_id=UUID(hex=topic_id), partitions=indexes)
        for topic_id, indexes in to_partitions(places).items()
    )


def consumer_group_describe(
    context: RequestContext, request: wire.ConsumerGroupDescribeRequest
) -> wire.ConsumerGroupDescribeResponse:
    """Versions 0 to 1. From 1 on with the protocol that each member speaks."""
    described = [_visible(context.caller, _describe_consumer_group(context, each)) for each in request.group_ids]
    if request.include_authorized_operations:
        described = [_with_operations(context.caller, group) for group in described]
    return wire.ConsumerGroupDescribeResponse(groups=tuple(described))


def _visible(caller: Caller, group: wire.DescribedConsumerGroup) -> wire.DescribedConsumerGroup:
    """The group, unless it names topics that the client may not know of."""
    named = {name for member in group.members for name in member.subscribed_topic_names}
    for member in group.members:
        for assigned in (member.assignment, member.target_assignment):
            named.update(topic.topic_name for topic in assigned.topic_partitions)
    if all(caller.may_topic(AclAction.DESCRIBE, name) for name in named):
        return group
    return wire.DescribedConsumerGroup(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="The described group uses topics that the client is not authorized to describe.",
        group_id=group.group_id,
    )


def _describe_consumer_group(context: RequestContext, group_id: str) -> wire.DescribedConsumerGroup:
    try:
        group = context.broker.groups.find(group_id)
        if group is None:
            raise GroupNotFound(f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise GroupNotFound(f"Group {group_id} is not a consumer group.")
    except PenstockError as error:
        return wire.DescribedConsumerGroup(error_code=error_code(error), error_message=error.message, group_id=group_id)
    stored = group.ledger.group
    return wire.DescribedConsumerGroup(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=stored.epoch,
        assignment_epoch=stored.assignment_epoch,
        assignor_name=stored.assignor,
        members=tuple(
            _describe_consumer(context, group, member_id, facts) for member_id, facts in group.ledger.members.items()
        ),
    )


def _describe_consumer(
    context: RequestContext, group: ConsumerGroup, member_id: str, facts: StoredConsumer
) -> wire.DescribedMember:
    current = group.ledger.current_of(member_id)
    return wire.DescribedMember(
        member_id=member_id,
        instance_id=facts.instance_id,
        rack_id=facts.rack_id,
        member_epoch=current.epoch,
        client_id=facts.client_id,
        client_host=facts.client_host,
        subscribed_topic_names=facts.topics,
        subscribed_topic_regex=facts.regex or None,
        assignment=_named(context, current.assigned),
        target_assignment=_named(context, group.ledger.target_of(member_id)),
        member_type=_CONSUMER_MEMBER if facts.classic is None else _CLASSIC_MEMBER,
    )


def _named(context: RequestContext, places: Iterable[Place]) -> wire.DescribedAssignment:
    """Partitions with their topics' names; those of topics that are gone are left out."""
    rows = []
    for topic_id, indexes in to_partitions(places).items():
        topic = context.broker.metadata.topic_by_id(UUID(hex=topic_id))
        if topic is not None:
            rows.append(wire.NamedTopicPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=indexes))
    return wire.DescribedAssignment(topic_partitions=tuple(rows))


HANDLERS = (
    Handler(wire.FindCoordinatorRequest, find_coordinator),
    Handler(wire.JoinGroupRequest, join_group),
    Handler(wire.SyncGroupRequest, sync_group),
    Handler(wire.HeartbeatRequest, heartbeat),
    Handler(wire.LeaveGroupRequest, leave_group),
    Handler(wire.DescribeGroupsRequest, describe_groups),
    Handler(wire.ListGroupsRequest, list_groups),
    Handler(wire.DeleteGroupsRequest, delete_groups),
    Handler(wire.ConsumerGroupHeartbeatRequest, consumer_group_heartbeat),
    Handler(wire.ConsumerGroupDescribeRequest, consumer_group_describe),
)
