"""Structures that messages of several APIs have in common, field by field."""

from __future__ import annotations

import msgspec

from penstock.doors.kafka.protocol.schema import Int16, Int32, String

NOT_REQUESTED = -(1 << 31)  # authorized operations that the client did not ask for


class TopicPartitions(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[Int32, ...]


class TopicPartitionIndexes(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partition_indexes: tuple[Int32, ...]


class TopicAndPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """The same where Kafka calls the name ``topic``."""

    topic: String
    partitions: tuple[Int32, ...]


class PartitionErrorCode(msgspec.Struct, frozen=True, kw_only=True):
    partition_index: Int32
    error_code: Int16


class TopicErrorCodes(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    partitions: tuple[PartitionErrorCode, ...]


class ConfigValue(msgspec.Struct, frozen=True, kw_only=True):
    name: String
    value: String | None
