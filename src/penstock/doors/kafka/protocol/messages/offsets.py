"""Offsets of a log by time and by leader epoch, and the offsets that groups commit."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.doors.kafka.protocol.messages.shared import TopicErrorCodes, TopicPartitionIndexes, WireMessage
from penstock.doors.kafka.protocol.schema import Bool, Int8, Int16, Int32, Int64, Nullable, Since, String, Until


class ListOffsetsPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Since(4)] = -1
    timestamp: Int64


class ListOffsetsTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[ListOffsetsPartition, ...]


class ListOffsetsRequest(WireMessage, frozen=True, kw_only=True):
    """The first offset at or after a time; -1 asks for the end, -2 for the start, -3 for the latest record's."""

    replica_id: Int32
    isolation_level: Annotated[Int8, Since(2)] = 0
    topics: tuple[ListOffsetsTopic, ...]


class ListOffsetsPartitionResponse(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    error_code: Int16
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Since(4)] = -1


class ListOffsetsTopicResponse(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[ListOffsetsPartitionResponse, ...]


class ListOffsetsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    topics: tuple[ListOffsetsTopicResponse, ...]


class OffsetForLeaderPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition: Int32
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32


class OffsetForLeaderTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic: String
    partitions: tuple[OffsetForLeaderPartition, ...]


class OffsetForLeaderEpochRequest(WireMessage, frozen=True, kw_only=True):
    replica_id: Annotated[Int32, Since(3)] = -2
    topics: tuple[OffsetForLeaderTopic, ...]


class EpochEndOffset(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    partition: Int32
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(msgspec.Struct, frozen=True, kw_only=True):
    topic: String
    partitions: tuple[EpochEndOffset, ...]


class OffsetForLeaderEpochResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetForLeaderTopicResult, ...]


class OffsetCommitRequestPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(6)] = -1
    committed_metadata: String | None


class OffsetCommitRequestTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[OffsetCommitRequestPartition, ...]


class OffsetCommitRequest(WireMessage, frozen=True, kw_only=True):
    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String
    group_instance_id: Annotated[String | None, Since(7)] = None
    retention_time_ms: Annotated[Int64, Until(4)] = -1
    topics: tuple[OffsetCommitRequestTopic, ...]


class OffsetCommitResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    topics: tuple[TopicErrorCodes, ...]


class OffsetFetchRequestGroup(msgspec.Struct, frozen=True, kw_only=True):
    group_id: String
    member_id: Annotated[String | None, Since(9)] = None
    member_epoch: Annotated[Int32, Since(9)] = -1
    topics: tuple[TopicPartitionIndexes, ...] | None


class OffsetFetchRequest(WireMessage, frozen=True, kw_only=True):
    """One group up to version 7, many from version 8 on; null topics are all that the group has committed."""

    group_id: Annotated[String, Until(7)] = ""
    topics: Annotated[tuple[TopicPartitionIndexes, ...] | None, Until(7), Nullable(2)] = None
    groups: Annotated[tuple[OffsetFetchRequestGroup, ...], Since(8)] = ()
    require_stable: Annotated[Bool, Since(7)] = False


class OffsetFetchResponsePartition(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(5)] = -1
    metadata: String | None
    error_code: Int16


class OffsetFetchResponseTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[OffsetFetchResponsePartition, ...]


class OffsetFetchResponseGroup(msgspec.Struct, frozen=True, kw_only=True):
    group_id: String
    topics: tuple[OffsetFetchResponseTopic, ...]
    error_code: Int16 = 0


class OffsetFetchResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    topics: Annotated[tuple[OffsetFetchResponseTopic, ...], Until(7)] = ()
    error_code: Annotated[Int16, Since(2), Until(7)] = 0
    groups: Annotated[tuple[OffsetFetchResponseGroup, ...], Since(8)] = ()


class OffsetDeleteRequestPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32


class OffsetDeleteRequestTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[OffsetDeleteRequestPartition, ...]


class OffsetDeleteRequest(WireMessage, frozen=True, kw_only=True):
    group_id: String
    topics: tuple[OffsetDeleteRequestTopic, ...]


class OffsetDeleteResponse(WireMessage, frozen=True, kw_only=True):
    error_code: Int16
    throttle_time_ms: Int32 = 0
    topics: tuple[TopicErrorCodes, ...]
