"""Producer ids and transactions.

One description for all versions of each message; see ``schema`` for how to read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from penstock.kafka.protocol import apis
from penstock.kafka.protocol.schema import Api, Bool, Int8, Int16, Int32, Int64, Since, String


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    api: ClassVar[Api] = apis.INIT_PRODUCER_ID

    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Since(3)] = -1
    producer_epoch: Annotated[Int16, Since(3)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    api: ClassVar[Api] = apis.INIT_PRODUCER_ID

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnTopic:
    name: String
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnRequest:
    api: ClassVar[Api] = apis.ADD_PARTITIONS_TO_TXN

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[AddPartitionsToTxnTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnPartitionResult:
    partition_index: Int32
    partition_error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnTopicResult:
    name: String
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnResponse:
    api: ClassVar[Api] = apis.ADD_PARTITIONS_TO_TXN

    throttle_time_ms: Int32 = 0
    results: tuple[AddPartitionsToTxnTopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnRequest:
    api: ClassVar[Api] = apis.ADD_OFFSETS_TO_TXN

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnResponse:
    api: ClassVar[Api] = apis.ADD_OFFSETS_TO_TXN

    throttle_time_ms: Int32 = 0
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnRequest:
    api: ClassVar[Api] = apis.END_TXN

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnResponse:
    api: ClassVar[Api] = apis.END_TXN

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Annotated[Int64, Since(5)] = -1
    producer_epoch: Annotated[Int16, Since(5)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarkerTopic:
    name: String
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarker:
    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Bool
    topics: tuple[WritableTxnMarkerTopic, ...]
    coordinator_epoch: Int32
    transaction_version: Annotated[Int8, Since(2)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTxnMarkersRequest:
    api: ClassVar[Api] = apis.WRITE_TXN_MARKERS

    markers: tuple[WritableTxnMarker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarkerPartitionResult:
    partition_index: Int32
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarkerTopicResult:
    name: String
    partitions: tuple[WritableTxnMarkerPartitionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarkerResult:
    producer_id: Int64
    topics: tuple[WritableTxnMarkerTopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTxnMarkersResponse:
    api: ClassVar[Api] = apis.WRITE_TXN_MARKERS

    markers: tuple[WritableTxnMarkerResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequestPartition:
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Since(2)] = -1
    committed_metadata: String | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequestTopic:
    name: String
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest:
    api: ClassVar[Api] = apis.TXN_OFFSET_COMMIT

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Annotated[Int32, Since(3)] = -1
    member_id: Annotated[String, Since(3)] = ""
    group_instance_id: Annotated[String | None, Since(3)] = None
    topics: tuple[TxnOffsetCommitRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponsePartition:
    partition_index: Int32
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponseTopic:
    name: String
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponse:
    api: ClassVar[Api] = apis.TXN_OFFSET_COMMIT

    throttle_time_ms: Int32 = 0
    topics: tuple[TxnOffsetCommitResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    name: String
    partition_indexes: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersRequest:
    api: ClassVar[Api] = apis.DESCRIBE_PRODUCERS

    topics: tuple[TopicRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    partition_index: Int32
    error_code: Int16
    error_message: String | None = None
    active_producers: tuple[ProducerState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    name: String
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse:
    api: ClassVar[Api] = apis.DESCRIBE_PRODUCERS

    throttle_time_ms: Int32 = 0
    topics: tuple[TopicResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsRequest:
    api: ClassVar[Api] = apis.DESCRIBE_TRANSACTIONS

    transactional_ids: tuple[String, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    topic: String
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTransaction:
    error_code: Int16
    transactional_id: String
    transaction_state: String
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[TopicData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse:
    api: ClassVar[Api] = apis.DESCRIBE_TRANSACTIONS

    throttle_time_ms: Int32 = 0
    transaction_states: tuple[DescribedTransaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsRequest:
    api: ClassVar[Api] = apis.LIST_TRANSACTIONS

    state_filters: tuple[String, ...]
    producer_id_filters: tuple[Int64, ...]
    duration_filter: Annotated[Int64, Since(1)] = -1
    transactional_id_pattern: Annotated[String | None, Since(2)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    transactional_id: String
    producer_id: Int64
    transaction_state: String


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsResponse:
    api: ClassVar[Api] = apis.LIST_TRANSACTIONS

    throttle_time_ms: Int32 = 0
    error_code: Int16
    unknown_state_filters: tuple[String, ...]
    transaction_states: tuple[ListedTransaction, ...]
