"""Topics created, grown, trimmed and deleted."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.doors.kafka.protocol.messages.shared import ConfigValue, WireMessage
from penstock.doors.kafka.protocol.schema import (
    NO_UUID,
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


class CreatableReplicaAssignment(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    broker_ids: tuple[Int32, ...]


class CreatableTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[CreatableReplicaAssignment, ...]
    configs: tuple[ConfigValue, ...]


class CreateTopicsRequest(WireMessage, frozen=True, kw_only=True):
    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


class CreatableTopicConfigs(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    value: String | None
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool


class CreatableTopicResult(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    topic_id: Annotated[Uuid, Since(7)] = NO_UUID
    error_code: Int16
    error_message: String | None = None
    topic_config_error_code: Annotated[Int16, Since(5), Tag(0)] = 0
    num_partitions: Annotated[Int32, Since(5)] = -1
    replication_factor: Annotated[Int16, Since(5)] = -1
    configs: Annotated[tuple[CreatableTopicConfigs, ...] | None, Since(5)] = None


class CreateTopicsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    topics: tuple[CreatableTopicResult, ...]


class DeleteTopicState(msgspec.Struct, frozen=True, kw_only=True):
    name: String | None = None
    topic_id: Uuid


class DeleteTopicsRequest(WireMessage, frozen=True, kw_only=True):
    """By name up to version 5; by name or by id from version 6 on."""

    topics: Annotated[tuple[DeleteTopicState, ...], Since(6)] = ()
    topic_names: Annotated[tuple[String, ...], Until(5)] = ()
    timeout_ms: Int32


class DeletableTopicResult(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[String | None, Nullable(6)]
    topic_id: Annotated[Uuid, Since(6)] = NO_UUID
    error_code: Int16
    error_message: Annotated[String | None, Since(5)] = None


class DeleteTopicsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    responses: tuple[DeletableTopicResult, ...]


class CreatePartitionsAssignment(msgspec.Struct, frozen=True, kw_only=True):
    broker_ids: tuple[Int32, ...]


class CreatePartitionsTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    count: Int32
    assignments: tuple[CreatePartitionsAssignment, ...] | None


class CreatePartitionsRequest(WireMessage, frozen=True, kw_only=True):
    topics: tuple[CreatePartitionsTopic, ...]
    timeout_ms: Int32
    validate_only: Bool


class CreatePartitionsTopicResult(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    error_code: Int16
    error_message: String | None = None


class CreatePartitionsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: tuple[CreatePartitionsTopicResult, ...]


class DeleteRecordsPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    offset: Int64


class DeleteRecordsTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[DeleteRecordsPartition, ...]


class DeleteRecordsRequest(WireMessage, frozen=True, kw_only=True):
    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32


class DeleteRecordsPartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    low_watermark: Int64
    error_code: Int16


class DeleteRecordsTopicResult(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[DeleteRecordsPartitionResult, ...]


class DeleteRecordsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    topics: tuple[DeleteRecordsTopicResult, ...]
