"""Classic consumer groups: their members, and what an administrator does with them.

One description for all versions of each message; see ``schema`` for how to read them.

Metadata and assignments of members are opaque to the broker: the clients of a group understand them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from penstock.kafka.protocol import apis
from penstock.kafka.protocol.schema import Api, Bool, Bytes, Int16, Int32, Nullable, Since, String, Until


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequestProtocol:
    name: String
    metadata: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest:
    api: ClassVar[Api] = apis.JOIN_GROUP

    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, Since(1)] = -1
    member_id: String
    group_instance_id: Annotated[String | None, Since(5)] = None
    protocol_type: String
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: Annotated[String | None, Since(8)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponseMember:
    member_id: String
    group_instance_id: Annotated[String | None, Since(5)] = None
    metadata: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    api: ClassVar[Api] = apis.JOIN_GROUP

    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, Since(7)] = None
    protocol_name: Annotated[String | None, Nullable(7)]
    leader: String
    skip_assignment: Annotated[Bool, Since(9)] = False
    member_id: String
    members: tuple[JoinGroupResponseMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequestAssignment:
    member_id: String
    assignment: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest:
    api: ClassVar[Api] = apis.SYNC_GROUP

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Since(3)] = None
    protocol_type: Annotated[String | None, Since(5)] = None
    protocol_name: Annotated[String | None, Since(5)] = None
    assignments: tuple[SyncGroupRequestAssignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    api: ClassVar[Api] = apis.SYNC_GROUP

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16
    protocol_type: Annotated[String | None, Since(5)] = None
    protocol_name: Annotated[String | None, Since(5)] = None
    assignment: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    api: ClassVar[Api] = apis.HEARTBEAT

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Since(3)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    api: ClassVar[Api] = apis.HEARTBEAT

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    member_id: String
    group_instance_id: String | None = None
    reason: Annotated[String | None, Since(5)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest:
    api: ClassVar[Api] = apis.LEAVE_GROUP

    group_id: String
    member_id: Annotated[String, Until(2)] = ""
    members: Annotated[tuple[MemberIdentity, ...], Since(3)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResponse:
    member_id: String
    group_instance_id: String | None
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    api: ClassVar[Api] = apis.LEAVE_GROUP

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16
    members: Annotated[tuple[MemberResponse, ...], Since(3)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest:
    api: ClassVar[Api] = apis.DESCRIBE_GROUPS

    groups: tuple[String, ...]
    include_authorized_operations: Annotated[Bool, Since(3)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroupMember:
    member_id: String
    group_instance_id: Annotated[String | None, Since(4)] = None
    client_id: String
    client_host: String
    member_metadata: Bytes
    member_assignment: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    error_code: Int16
    error_message: Annotated[String | None, Since(6)] = None
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: tuple[DescribedGroupMember, ...]
    authorized_operations: Annotated[Int32, Since(3)] = -2147483648


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse:
    api: ClassVar[Api] = apis.DESCRIBE_GROUPS

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest:
    api: ClassVar[Api] = apis.LIST_GROUPS

    states_filter: Annotated[tuple[String, ...], Since(4)] = ()
    types_filter: Annotated[tuple[String, ...], Since(5)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: String
    protocol_type: String
    group_state: Annotated[String, Since(4)] = ""
    group_type: Annotated[String, Since(5)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    api: ClassVar[Api] = apis.LIST_GROUPS

    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest:
    api: ClassVar[Api] = apis.DELETE_GROUPS

    groups_names: tuple[String, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableGroupResult:
    group_id: String
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    api: ClassVar[Api] = apis.DELETE_GROUPS

    throttle_time_ms: Int32 = 0
    results: tuple[DeletableGroupResult, ...]
