"""Produce and Fetch in their plain form, for clients and tests.

Records are copied here; the broker reads and writes the same messages with `protocol.produce` and `protocol.fetch`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.doors.kafka.protocol.messages.shared import WireMessage
from penstock.doors.kafka.protocol.schema import (
    NO_UUID,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Since,
    String,
    Tag,
    Until,
    Uuid,
)


class PartitionProduceData(msgspec.Struct, frozen=True, kw_only=True):
    index: Int32
    records: Bytes | None


class TopicProduceData(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partition_data: tuple[PartitionProduceData, ...]


class ProduceRequest(WireMessage, frozen=True, kw_only=True):
    transactional_id: Annotated[String | None, Since(3)] = None
    acks: Int16
    timeout_ms: Int32
    topic_data: tuple[TopicProduceData, ...]


class BatchIndexAndErrorMessage(msgspec.Struct, frozen=True, kw_only=True):
    batch_index: Int32
    batch_index_error_message: String | None = None


class LeaderIdAndEpoch(msgspec.Struct, frozen=True, kw_only=True):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(msgspec.Struct, frozen=True, kw_only=True):
    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Annotated[Int64, Since(2)] = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    record_errors: Annotated[tuple[BatchIndexAndErrorMessage, ...], Since(8)] = ()
    error_message: Annotated[String | None, Since(8)] = None
    current_leader: Annotated[LeaderIdAndEpoch, Since(10), Tag(0)] = LeaderIdAndEpoch()


class TopicProduceResponse(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partition_responses: tuple[PartitionProduceResponse, ...]


class NodeEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None


class ProduceResponse(WireMessage, frozen=True, kw_only=True):
    responses: tuple[TopicProduceResponse, ...]
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Since(10), Tag(0)] = ()


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition: Int32
    current_leader_epoch: Annotated[Int32, Since(9)] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, Since(12)] = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    partition_max_bytes: Int32
    replica_directory_id: Annotated[Uuid, Since(17), Tag(0)] = NO_UUID


class FetchTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic: Annotated[String, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_UUID
    partitions: tuple[FetchPartition, ...]


class ForgottenTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic: Annotated[String, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_UUID
    partitions: tuple[Int32, ...]


class FetchRequest(WireMessage, frozen=True, kw_only=True):
    cluster_id: Annotated[String | None, Since(12), Tag(0)] = None
    replica_id: Annotated[Int32, Until(14)] = -1
    replica_state: Annotated[ReplicaState, Since(15), Tag(1)] = ReplicaState()
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 2147483647
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Since(7)] = 0
    session_epoch: Annotated[Int32, Since(7)] = -1
    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: Annotated[tuple[ForgottenTopic, ...], Since(7)] = ()
    rack_id: Annotated[String, Since(11)] = ""


class EpochEndOffset(msgspec.Struct, frozen=True, kw_only=True):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class SnapshotId(msgspec.Struct, frozen=True, kw_only=True):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: Int64
    first_offset: Int64


class PartitionData(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    diverging_epoch: Annotated[EpochEndOffset, Since(12), Tag(0)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, Since(12), Tag(1)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, Since(12), Tag(2)] = SnapshotId()
    aborted_transactions: tuple[AbortedTransaction, ...] | None
    preferred_read_replica: Annotated[Int32, Since(11)] = -1
    records: Bytes | None


class FetchableTopicResponse(msgspec.Struct, frozen=True, kw_only=True):
    topic: Annotated[String, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_UUID
    partitions: tuple[PartitionData, ...]


class FetchResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(7)] = 0
    session_id: Annotated[Int32, Since(7)] = 0
    responses: tuple[FetchableTopicResponse, ...]
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], Since(16), Tag(0)] = ()
