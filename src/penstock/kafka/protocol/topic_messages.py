"""Topics made, grown, trimmed and deleted.

One description for all versions of each message; see ``schema`` for how to read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from penstock.kafka.protocol import apis
from penstock.kafka.protocol.schema import (
    NO_UUID,
    Api,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Nullable,
    Since,
    String,
    Tag,
    Until,
    Uuid,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableReplicaAssignment:
    partition_index: Int32
    broker_ids: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicConfig:
    name: String
    value: String | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopic:
    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[CreatableReplicaAssignment, ...]
    configs: tuple[CreatableTopicConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest:
    api: ClassVar[Api] = apis.CREATE_TOPICS

    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicConfigs:
    name: String
    value: String | None
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicResult:
    name: String
    topic_id: Annotated[Uuid, Since(7)] = NO_UUID
    error_code: Int16
    error_message: String | None = None
    topic_config_error_code: Annotated[Int16, Since(5), Tag(0)] = 0
    num_partitions: Annotated[Int32, Since(5)] = -1
    replication_factor: Annotated[Int16, Since(5)] = -1
    configs: Annotated[tuple[CreatableTopicConfigs, ...] | None, Since(5)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse:
    api: ClassVar[Api] = apis.CREATE_TOPICS

    throttle_time_ms: Int32 = 0
    topics: tuple[CreatableTopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicState:
    name: String | None = None
    topic_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest:
    """By name up to version 5; by name or by id from version 6 on."""

    api: ClassVar[Api] = apis.DELETE_TOPICS

    topics: Annotated[tuple[DeleteTopicState, ...], Since(6)] = ()
    topic_names: Annotated[tuple[String, ...], Until(5)] = ()
    timeout_ms: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableTopicResult:
    name: Annotated[String | None, Nullable(6)]
    topic_id: Annotated[Uuid, Since(6)] = NO_UUID
    error_code: Int16
    error_message: Annotated[String | None, Since(5)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsResponse:
    api: ClassVar[Api] = apis.DELETE_TOPICS

    throttle_time_ms: Int32 = 0
    responses: tuple[DeletableTopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsAssignment:
    broker_ids: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsTopic:
    name: String
    count: Int32
    assignments: tuple[CreatePartitionsAssignment, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest:
    api: ClassVar[Api] = apis.CREATE_PARTITIONS

    topics: tuple[CreatePartitionsTopic, ...]
    timeout_ms: Int32
    validate_only: Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsTopicResult:
    name: String
    error_code: Int16
    error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsResponse:
    api: ClassVar[Api] = apis.CREATE_PARTITIONS

    throttle_time_ms: Int32 = 0
    results: tuple[CreatePartitionsTopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsPartition:
    partition_index: Int32
    offset: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsTopic:
    name: String
    partitions: tuple[DeleteRecordsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest:
    api: ClassVar[Api] = apis.DELETE_RECORDS

    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsPartitionResult:
    partition_index: Int32
    low_watermark: Int64
    error_code: Int16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsTopicResult:
    name: String
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    api: ClassVar[Api] = apis.DELETE_RECORDS

    throttle_time_ms: Int32 = 0
    topics: tuple[DeleteRecordsTopicResult, ...]
