"""Settings of topics, groups and nodes, and log directories."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.doors.kafka.protocol.messages.shared import (
    ConfigValue,
    PartitionErrorCode,
    TopicAndPartitions,
    TopicPartitions,
    WireMessage,
)
from penstock.doors.kafka.protocol.schema import Bool, Int8, Int16, Int32, Int64, Since, String


class DescribeConfigsResource(msgspec.Struct, frozen=True, kw_only=True):
    resource_type: Int8
    resource_name: String
    configuration_keys: tuple[String, ...] | None


class DescribeConfigsRequest(WireMessage, frozen=True, kw_only=True):
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, Since(3)] = False


class DescribeConfigsSynonym(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    value: String | None
    source: Int8


class DescribeConfigsResourceResult(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    value: String | None
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool
    synonyms: tuple[DescribeConfigsSynonym, ...]
    config_type: Annotated[Int8, Since(3)] = 0
    documentation: Annotated[String | None, Since(3)] = None


class DescribeConfigsResult(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String
    configs: tuple[DescribeConfigsResourceResult, ...]


class DescribeConfigsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: tuple[DescribeConfigsResult, ...]


class AlterConfigsResource(msgspec.Struct, frozen=True, kw_only=True):
    resource_type: Int8
    resource_name: String
    configs: tuple[ConfigValue, ...]


class AlterConfigsRequest(WireMessage, frozen=True, kw_only=True):
    resources: tuple[AlterConfigsResource, ...]
    validate_only: Bool


class AlterConfigsResourceResponse(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String


class AlterConfigsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]


class IncrementalAlterableConfig(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    config_operation: Int8
    value: String | None


class IncrementalAlterConfigsResource(msgspec.Struct, frozen=True, kw_only=True):
    resource_type: Int8
    resource_name: String
    configs: tuple[IncrementalAlterableConfig, ...]


class IncrementalAlterConfigsRequest(WireMessage, frozen=True, kw_only=True):
    resources: tuple[IncrementalAlterConfigsResource, ...]
    validate_only: Bool


class IncrementalAlterConfigsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]


class DescribeLogDirsRequest(WireMessage, frozen=True, kw_only=True):
    topics: tuple[TopicAndPartitions, ...] | None


class DescribeLogDirsPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Bool


class DescribeLogDirsTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[DescribeLogDirsPartition, ...]


class DescribeLogDirsResult(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    log_dir: String
    topics: tuple[DescribeLogDirsTopic, ...]
    total_bytes: Annotated[Int64, Since(4)] = -1
    usable_bytes: Annotated[Int64, Since(4)] = -1


class DescribeLogDirsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(3)] = 0
    results: tuple[DescribeLogDirsResult, ...]


class AlterReplicaLogDir(msgspec.Struct, frozen=True, kw_only=True):
    path: String
    topics: tuple[TopicPartitions, ...]


class AlterReplicaLogDirsRequest(WireMessage, frozen=True, kw_only=True):
    dirs: tuple[AlterReplicaLogDir, ...]


class AlterReplicaLogDirTopicResult(msgspec.Struct, frozen=True, kw_only=True):
    topic_name: String
    partitions: tuple[PartitionErrorCode, ...]


class AlterReplicaLogDirsResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: tuple[AlterReplicaLogDirTopicResult, ...]


class ListConfigResourcesRequest(WireMessage, frozen=True, kw_only=True):
    resource_types: Annotated[tuple[Int8, ...], Since(1)] = ()


class ConfigResource(msgspec.Struct, frozen=True, kw_only=True):
    resource_name: String
    resource_type: Annotated[Int8, Since(1)] = 16


class ListConfigResourcesResponse(WireMessage, frozen=True, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    config_resources: tuple[ConfigResource, ...] = ()
