"""Coordinators, classic consumer groups, and groups of the new protocol (KIP-848).

Metadata and assignments of classic members are opaque to the broker: the clients of a group understand them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.doors.kafka.protocol.messages.shared import NOT_REQUESTED, WireMessage
from penstock.doors.kafka.protocol.schema import (
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Nullable,
    Since,
    String,
    Until,
    Uuid,
)


class FindCoordinatorRequest(WireMessage, frozen=True, kw_only=True):
    """One key up to version 3, many from version 4 on."""

    key: Annotated[String, Until(3)] = ""
    key_type: Annotated[Int8, Since(1)] = 0
    coordinator_keys: Annotated[tuple[String, ...], Since(4)] = ()


class Coordinator(msgspec.Struct, frozen=True, kw_only=True):
    key: String
    node_id: Int32
    host: String
    port: Int32
    error_code: Int16
    error_message: String | None = None


class FindCoordinatorResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Annotated[Int16, Until(3)] = 0
    error_message: Annotated[String | None, Since(1), Until(3)] = None
    node_id: Annotated[Int32, Until(3)] = 0
    host: Annotated[String, Until(3)] = ""
    port: Annotated[Int32, Until(3)] = 0
    coordinators: Annotated[tuple[Coordinator, ...], Since(4)] = ()


class JoinGroupRequestProtocol(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    metadata: Bytes


class JoinGroupRequest(WireMessage, frozen=True, kw_only=True):
    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, Since(1)] = -1
    member_id: String
    group_instance_id: Annotated[String | None, Since(5)] = None
    protocol_type: String
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: Annotated[String | None, Since(8)] = None


class JoinGroupResponseMember(msgspec.Struct, frozen=True, kw_only=True):
    member_id: String
    group_instance_id: Annotated[String | None, Since(5)] = None
    metadata: Bytes


class JoinGroupResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, Since(7)] = None
    protocol_name: Annotated[String | None, Nullable(7)]
    leader: String
    skip_assignment: Annotated[Bool, Since(9)] = False
    member_id: String
    members: tuple[JoinGroupResponseMember, ...]


class SyncGroupRequestAssignment(msgspec.Struct, frozen=True, kw_only=True):
    member_id: String
    assignment: Bytes


class SyncGroupRequest(WireMessage, frozen=True, kw_only=True):
    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Since(3)] = None
    protocol_type: Annotated[String | None, Since(5)] = None
    protocol_name: Annotated[String | None, Since(5)] = None
    assignments: tuple[SyncGroupRequestAssignment, ...]


class SyncGroupResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16
    protocol_type: Annotated[String | None, Since(5)] = None
    protocol_name: Annotated[String | None, Since(5)] = None
    assignment: Bytes


class HeartbeatRequest(WireMessage, frozen=True, kw_only=True):
    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Since(3)] = None


class HeartbeatResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16


class MemberIdentity(msgspec.Struct, frozen=True, kw_only=True):
    member_id: String
    group_instance_id: String | None = None
    reason: Annotated[String | None, Since(5)] = None


class LeaveGroupRequest(WireMessage, frozen=True, kw_only=True):
    group_id: String
    member_id: Annotated[String, Until(2)] = ""
    members: Annotated[tuple[MemberIdentity, ...], Since(3)] = ()


class MemberResponse(msgspec.Struct, frozen=True, kw_only=True):
    member_id: String
    group_instance_id: String | None
    error_code: Int16


class LeaveGroupResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16
    members: Annotated[tuple[MemberResponse, ...], Since(3)] = ()


class DescribeGroupsRequest(WireMessage, frozen=True, kw_only=True):
    groups: tuple[String, ...]
    include_authorized_operations: Annotated[Bool, Since(3)] = False


class DescribedGroupMember(msgspec.Struct, frozen=True, kw_only=True):
    member_id: String
    group_instance_id: Annotated[String | None, Since(4)] = None
    client_id: String
    client_host: String
    member_metadata: Bytes
    member_assignment: Bytes


class DescribedGroup(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    error_message: Annotated[String | None, Since(6)] = None
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: tuple[DescribedGroupMember, ...]
    authorized_operations: Annotated[Int32, Since(3)] = NOT_REQUESTED


class DescribeGroupsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    groups: tuple[DescribedGroup, ...]


class ListGroupsRequest(WireMessage, frozen=True, kw_only=True):
    states_filter: Annotated[tuple[String, ...], Since(4)] = ()
    types_filter: Annotated[tuple[String, ...], Since(5)] = ()


class ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    group_id: String
    protocol_type: String
    group_state: Annotated[String, Since(4)] = ""
    group_type: Annotated[String, Since(5)] = ""


class ListGroupsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16
    groups: tuple[ListedGroup, ...]


class DeleteGroupsRequest(WireMessage, frozen=True, kw_only=True):
    groups_names: tuple[String, ...]


class DeletableGroupResult(msgspec.Struct, frozen=True, kw_only=True):
    group_id: String
    error_code: Int16


class DeleteGroupsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: tuple[DeletableGroupResult, ...]


class TopicPartitions(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: Uuid
    partitions: tuple[Int32, ...]


class ConsumerGroupHeartbeatRequest(WireMessage, frozen=True, kw_only=True):
    """Null, or -1, stands for what is as it was. Version 1 adds the pattern, and has clients make their member ids."""

    group_id: String
    member_id: String
    member_epoch: Int32
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: tuple[String, ...] | None = None
    subscribed_topic_regex: Annotated[String | None, Since(1)] = None
    server_assignor: String | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    topic_partitions: tuple[TopicPartitions, ...]


class ConsumerGroupHeartbeatResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None


class ConsumerGroupDescribeRequest(WireMessage, frozen=True, kw_only=True):
    group_ids: tuple[String, ...]
    include_authorized_operations: Bool = False


class NamedTopicPartitions(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: Uuid
    topic_name: String
    partitions: tuple[Int32, ...]


class DescribedAssignment(msgspec.Struct, frozen=True, kw_only=True):
    topic_partitions: tuple[NamedTopicPartitions, ...]


class DescribedMember(msgspec.Struct, frozen=True, kw_only=True):
    member_id: String
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: tuple[String, ...]
    subscribed_topic_regex: String | None = None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: Annotated[Int8, Since(1)] = -1


class DescribedConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    error_message: String | None = None
    group_id: String
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: tuple[DescribedMember, ...] = ()
    authorized_operations: Int32 = NOT_REQUESTED


class ConsumerGroupDescribeResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    groups: tuple[DescribedConsumerGroup, ...]
