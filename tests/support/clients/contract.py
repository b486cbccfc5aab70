"""What the acceptance tests ask of a Kafka client, whichever one it is.

Each adapter beside this file gives one Python client this shape and nothing more, so that one test says what holds for
all of them. Every call has an end: a client that waits longer than `PATIENCE_S` has failed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

PATIENCE_S: Final = 60.0
NOW_MS: Final = time.time_ns() // 1_000_000  # old timestamps would be retention's business

NONE = "none"
GZIP = "gzip"
SNAPPY = "snappy"
LZ4 = "lz4"
ZSTD = "zstd"

Headers = tuple[tuple[str, bytes | None], ...]


class Message(NamedTuple):
    """What is sent, and what must come back."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int = 0
    timestamp_ms: int = NOW_MS


class Received(NamedTuple):
    """A message and the offset it was read from."""

    offset: int
    message: Message


class Refused(Exception):
    """The node answered with an error; ``code`` is Kafka's number for it."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"error {code}: {message}")
        self.code = code


class Client(Protocol):
    """One client library, connected to one node."""

    name: str
    codecs: tuple[str, ...]

    def create_topic(self, topic: str, partitions: int = 1, **config: str) -> None:
        """``config`` has ``_`` where the setting has a dot."""

    def delete_topic(self, topic: str) -> None: ...
    def add_partitions(self, topic: str, total: int) -> None: ...
    def partition_count(self, topic: str) -> int: ...
    def set_config(self, topic: str, name: str, value: str) -> None: ...
    def config(self, topic: str) -> dict[str, str | None]: ...
    def delete_records(self, topic: str, partition: int, before_offset: int) -> None: ...

    def produce(self, topic: str, messages: Iterable[Message], *, codec: str = NONE) -> list[int]:
        """Send idempotently with acks=all, in large batches; the offset of each message."""

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        """``count`` messages from ``offset`` on, by assignment and seek."""

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset at or after a time; None if there is none."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset and the one behind the last."""

    def close(self) -> None: ...


def setting_names(config: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in config.items()}


def in_order(messages: Sequence[Message], partition: int) -> list[Message]:
    """The messages of one partition, as they were sent."""
    return [message for message in messages if message.partition == partition]
