"""Producer ids and transactions."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.doors.kafka.protocol.messages.shared import (
    TopicAndPartitions,
    TopicErrorCodes,
    TopicPartitionIndexes,
    TopicPartitions,
    WireMessage,
)
from penstock.doors.kafka.protocol.schema import Bool, Int8, Int16, Int32, Int64, Since, String


class InitProducerIdRequest(WireMessage, frozen=True, kw_only=True):
    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Since(3)] = -1
    producer_epoch: Annotated[Int16, Since(3)] = -1


class InitProducerIdResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16


class AddPartitionsToTxnRequest(WireMessage, frozen=True, kw_only=True):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[TopicPartitions, ...]


class AddPartitionsToTxnPartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    partition_error_code: Int16


class AddPartitionsToTxnTopicResult(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...]


class AddPartitionsToTxnResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: tuple[AddPartitionsToTxnTopicResult, ...]


class AddOffsetsToTxnRequest(WireMessage, frozen=True, kw_only=True):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


class AddOffsetsToTxnResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16


class EndTxnRequest(WireMessage, frozen=True, kw_only=True):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


class EndTxnResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Annotated[Int64, Since(5)] = -1
    producer_epoch: Annotated[Int16, Since(5)] = -1


class WritableTxnMarker(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Bool
    topics: tuple[TopicPartitionIndexes, ...]
    coordinator_epoch: Int32
    transaction_version: Annotated[Int8, Since(2)] = 0


class WriteTxnMarkersRequest(WireMessage, frozen=True, kw_only=True):
    markers: tuple[WritableTxnMarker, ...]


class WritableTxnMarkerResult(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: Int64
    topics: tuple[TopicErrorCodes, ...]


class WriteTxnMarkersResponse(WireMessage, frozen=True, kw_only=True):
    markers: tuple[WritableTxnMarkerResult, ...]


class TxnOffsetCommitRequestPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(2)] = -1
    committed_metadata: String | None


class TxnOffsetCommitRequestTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


class TxnOffsetCommitRequest(WireMessage, frozen=True, kw_only=True):
    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Annotated[Int32, Since(3)] = -1
    member_id: Annotated[String, Since(3)] = ""
    group_instance_id: Annotated[String | None, Since(3)] = None
    topics: tuple[TxnOffsetCommitRequestTopic, ...]


class TxnOffsetCommitResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    topics: tuple[TopicErrorCodes, ...]


class DescribeProducersRequest(WireMessage, frozen=True, kw_only=True):
    topics: tuple[TopicPartitionIndexes, ...]


class ProducerState(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


class PartitionResponse(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    error_code: Int16
    error_message: String | None = None
    active_producers: tuple[ProducerState, ...]


class TopicResponse(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[PartitionResponse, ...]


class DescribeProducersResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    topics: tuple[TopicResponse, ...]


class DescribeTransactionsRequest(WireMessage, frozen=True, kw_only=True):
    transactional_ids: tuple[String, ...]


class DescribedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    transactional_id: String
    transaction_state: String
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[TopicAndPartitions, ...]


class DescribeTransactionsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    transaction_states: tuple[DescribedTransaction, ...]


class ListTransactionsRequest(WireMessage, frozen=True, kw_only=True):
    state_filters: tuple[String, ...]
    producer_id_filters: tuple[Int64, ...]
    duration_filter: Annotated[Int64, Since(1)] = -1
    transactional_id_pattern: Annotated[String | None, Since(2)] = None


class ListedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: String
    producer_id: Int64
    transaction_state: String


class ListTransactionsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    unknown_state_filters: tuple[String, ...]
    transaction_states: tuple[ListedTransaction, ...]
