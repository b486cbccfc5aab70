"""Offsets of a log by time and by leader epoch, and the offsets that groups commit.

One description for all versions of each message; see ``schema`` for how to read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from penstock.kafka.protocol import apis
from penstock.kafka.protocol.schema import Api, Bool, Int8, Int16, Int32, Int64, Nullable, Since, String, Until


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition:
    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Since(4)] = -1
    timestamp: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic:
    name: String
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    """The first offset at or after a time; -1 asks for the end, -2 for the start, -3 for the latest record's."""

    api: ClassVar[Api] = apis.LIST_OFFSETS

    replica_id: Int32
    isolation_level: Annotated[Int8, Since(2)] = 0
    topics: tuple[ListOffsetsTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    partition_index: Int32
    error_code: Int16
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Since(4)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    name: String
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    api: ClassVar[Api] = apis.LIST_OFFSETS

    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    topics: tuple[ListOffsetsTopicResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderPartition:
    partition: Int32
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderTopic:
    topic: String
    partitions: tuple[OffsetForLeaderPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    api: ClassVar[Api] = apis.OFFSET_FOR_LEADER_EPOCH

    replica_id: Annotated[Int32, Since(3)] = -2
    topics: tuple[OffsetForLeaderTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    error_code: Int16
    partition: Int32
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderTopicResult:
    topic: String
    partitions: tuple[EpochEndOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    api: ClassVar[Api] = apis.OFFSET_FOR_LEADER_EPOCH

    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetForLeaderTopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestPartition:
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(6)] = -1
    committed_metadata: String | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic:
    name: String
    partitions: tuple[OffsetCommitRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    api: ClassVar[Api] = apis.OFFSET_COMMIT

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String
    group_instance_id: Annotated[String | None, Since(7)] = None
    retention_time_ms: Annotated[Int64, Until(4)] = -1
    topics: tuple[OffsetCommitRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponsePartition:
    partition_index: Int32
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic:
    name: String
    partitions: tuple[OffsetCommitResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    api: ClassVar[Api] = apis.OFFSET_COMMIT

    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    topics: tuple[OffsetCommitResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopic:
    name: String
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopics:
    name: String
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup:
    group_id: String
    member_id: Annotated[String | None, Since(9)] = None
    member_epoch: Annotated[Int32, Since(9)] = -1
    topics: tuple[OffsetFetchRequestTopics, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """One group up to version 7, many from version 8 on; null topics are all that the group has committed."""

    api: ClassVar[Api] = apis.OFFSET_FETCH

    group_id: Annotated[String, Until(7)] = ""
    topics: Annotated[tuple[OffsetFetchRequestTopic, ...] | None, Until(7), Nullable(2)] = None
    groups: Annotated[tuple[OffsetFetchRequestGroup, ...], Since(8)] = ()
    require_stable: Annotated[Bool, Since(7)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponsePartition:
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(5)] = -1
    metadata: String | None
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopic:
    name: String
    partitions: tuple[OffsetFetchResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponsePartitions:
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    metadata: String | None
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopics:
    name: String
    partitions: tuple[OffsetFetchResponsePartitions, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseGroup:
    group_id: String
    topics: tuple[OffsetFetchResponseTopics, ...]
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    api: ClassVar[Api] = apis.OFFSET_FETCH

    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    topics: Annotated[tuple[OffsetFetchResponseTopic, ...], Until(7)] = ()
    error_code: Annotated[Int16, Since(2), Until(7)] = 0
    groups: Annotated[tuple[OffsetFetchResponseGroup, ...], Since(8)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequestPartition:
    partition_index: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequestTopic:
    name: String
    partitions: tuple[OffsetDeleteRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest:
    api: ClassVar[Api] = apis.OFFSET_DELETE

    group_id: String
    topics: tuple[OffsetDeleteRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponsePartition:
    partition_index: Int32
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponseTopic:
    name: String
    partitions: tuple[OffsetDeleteResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    api: ClassVar[Api] = apis.OFFSET_DELETE

    error_code: Int16
    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetDeleteResponseTopic, ...]
