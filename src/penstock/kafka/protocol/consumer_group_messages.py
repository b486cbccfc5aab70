"""Consumer groups of the new protocol (KIP-848): the heartbeat that is all a member says, and what tools are shown.

One description for all versions of each message; see ``schema`` for how to read them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from penstock.kafka.protocol import apis
from penstock.kafka.protocol.schema import Api, Bool, Int8, Int16, Int32, Since, String, Uuid


class TopicPartitions(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: Uuid
    partitions: tuple[Int32, ...]


class ConsumerGroupHeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Null, or -1, stands for what is as it was. Version 1 adds the pattern, and has clients make their member ids."""

    api: ClassVar[Api] = apis.CONSUMER_GROUP_HEARTBEAT

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


class ConsumerGroupHeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.CONSUMER_GROUP_HEARTBEAT

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None


class ConsumerGroupDescribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.CONSUMER_GROUP_DESCRIBE

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
    authorized_operations: Int32 = -2147483648


class ConsumerGroupDescribeResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.CONSUMER_GROUP_DESCRIBE

    throttle_time_ms: Int32 = 0
    groups: tuple[DescribedConsumerGroup, ...]
