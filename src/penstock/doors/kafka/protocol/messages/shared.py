"""What messages are made of: the base that binds each to its API, and structures that several APIs have in common."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from penstock.doors.kafka.protocol.apis import API_OF_NAME
from penstock.doors.kafka.protocol.schema import Api, Int16, Int32, String

NOT_REQUESTED = -(1 << 31)  # authorized operations that the client did not ask for


class WireMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A request or a response. It is named after its API: ``FetchRequest``, ``FetchResponse``."""

    api: ClassVar[Api]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.api = API_OF_NAME[cls.__name__.removesuffix("Request").removesuffix("Response")]


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
