"""Settings of topics, groups and nodes, log directories, and quotas."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.messages.shared import (
    ConfigValue,
    PartitionErrorCode,
    TopicAndPartitions,
    TopicPartitions,
)
from penstock.doors.kafka.protocol.schema import Api, Bool, Int8, Int16, Int32, Int64, Since, String


class DescribeConfigsResource(msgspec.Struct, frozen=True, kw_only=True):
    resource_type: Int8
    resource_name: String
    configuration_keys: tuple[String, ...] | None


class DescribeConfigsRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DESCRIBE_CONFIGS

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


class DescribeConfigsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DESCRIBE_CONFIGS

    throttle_time_ms: Int32 = 0
    results: tuple[DescribeConfigsResult, ...]


class AlterConfigsResource(msgspec.Struct, frozen=True, kw_only=True):
    resource_type: Int8
    resource_name: String
    configs: tuple[ConfigValue, ...]


class AlterConfigsRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.ALTER_CONFIGS

    resources: tuple[AlterConfigsResource, ...]
    validate_only: Bool


class AlterConfigsResourceResponse(msgspec.Struct, frozen=True, kw_only=True):
    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String


class AlterConfigsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.ALTER_CONFIGS

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


class IncrementalAlterConfigsRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.INCREMENTAL_ALTER_CONFIGS

    resources: tuple[IncrementalAlterConfigsResource, ...]
    validate_only: Bool


class IncrementalAlterConfigsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.INCREMENTAL_ALTER_CONFIGS

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]


class DescribeLogDirsRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DESCRIBE_LOG_DIRS

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


class DescribeLogDirsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.DESCRIBE_LOG_DIRS

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(3)] = 0
    results: tuple[DescribeLogDirsResult, ...]


class AlterReplicaLogDir(msgspec.Struct, frozen=True, kw_only=True):
    path: String
    topics: tuple[TopicPartitions, ...]


class AlterReplicaLogDirsRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.ALTER_REPLICA_LOG_DIRS

    dirs: tuple[AlterReplicaLogDir, ...]


class AlterReplicaLogDirTopicResult(msgspec.Struct, frozen=True, kw_only=True):
    topic_name: String
    partitions: tuple[PartitionErrorCode, ...]


class AlterReplicaLogDirsResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.ALTER_REPLICA_LOG_DIRS

    throttle_time_ms: Int32 = 0
    results: tuple[AlterReplicaLogDirTopicResult, ...]


class ListConfigResourcesRequest(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.LIST_CONFIG_RESOURCES

    resource_types: Annotated[tuple[Int8, ...], Since(1)] = ()


class ConfigResource(msgspec.Struct, frozen=True, kw_only=True):
    resource_name: String
    resource_type: Annotated[Int8, Since(1)] = 16


class ListConfigResourcesResponse(msgspec.Struct, frozen=True, kw_only=True):
    api: ClassVar[Api] = apis.LIST_CONFIG_RESOURCES

    throttle_time_ms: Int32 = 0
    error_code: Int16
    config_resources: tuple[ConfigResource, ...] = ()
