"""Settings of topics and brokers, described and changed, and where logs lie on disk.

One description for all versions of each message; see ``schema`` for how to read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from penstock.kafka.protocol import apis
from penstock.kafka.protocol.schema import Api, Bool, Int8, Int16, Int32, Int64, Since, String


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResource:
    resource_type: Int8
    resource_name: String
    configuration_keys: tuple[String, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest:
    api: ClassVar[Api] = apis.DESCRIBE_CONFIGS

    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, Since(3)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsSynonym:
    name: String
    value: String | None
    source: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResourceResult:
    name: String
    value: String | None
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool
    synonyms: tuple[DescribeConfigsSynonym, ...]
    config_type: Annotated[Int8, Since(3)] = 0
    documentation: Annotated[String | None, Since(3)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResult:
    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String
    configs: tuple[DescribeConfigsResourceResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    api: ClassVar[Api] = apis.DESCRIBE_CONFIGS

    throttle_time_ms: Int32 = 0
    results: tuple[DescribeConfigsResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterableConfig:
    name: String
    value: String | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResource:
    resource_type: Int8
    resource_name: String
    configs: tuple[AlterableConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest:
    api: ClassVar[Api] = apis.ALTER_CONFIGS

    resources: tuple[AlterConfigsResource, ...]
    validate_only: Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResourceResponse:
    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse:
    api: ClassVar[Api] = apis.ALTER_CONFIGS

    throttle_time_ms: Int32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterableConfig:
    name: String
    config_operation: Int8
    value: String | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsResource:
    resource_type: Int8
    resource_name: String
    configs: tuple[IncrementalAlterableConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest:
    api: ClassVar[Api] = apis.INCREMENTAL_ALTER_CONFIGS

    resources: tuple[IncrementalAlterConfigsResource, ...]
    validate_only: Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsResourceResponse:
    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsResponse:
    api: ClassVar[Api] = apis.INCREMENTAL_ALTER_CONFIGS

    throttle_time_ms: Int32 = 0
    responses: tuple[IncrementalAlterConfigsResourceResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribableLogDirTopic:
    topic: String
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsRequest:
    api: ClassVar[Api] = apis.DESCRIBE_LOG_DIRS

    topics: tuple[DescribableLogDirTopic, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsPartition:
    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64
    is_future_key: Bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsTopic:
    name: String
    partitions: tuple[DescribeLogDirsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResult:
    error_code: Int16
    log_dir: String
    topics: tuple[DescribeLogDirsTopic, ...]
    total_bytes: Annotated[Int64, Since(4)] = -1
    usable_bytes: Annotated[Int64, Since(4)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponse:
    api: ClassVar[Api] = apis.DESCRIBE_LOG_DIRS

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(3)] = 0
    results: tuple[DescribeLogDirsResult, ...]
