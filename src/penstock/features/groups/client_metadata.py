"""What consumers of the classic protocol tell each other inside joins and syncs, read and written by the broker.

Metadata belongs to the members, and the broker carries it without looking. But whether a restarted static member wants
something else, and whether a topic's offsets are still of use, can only be told from there; a hosted member is a
consumer like any other; and in a group of both protocols the coordinator assigns for everybody. What cannot be read
counts as unknown, never as nothing.

Formats: Kafka's ConsumerProtocolSubscription (int16 version; topics: int32 count, int16-prefixed names; user data:
int32 length; from version 1 on the partitions owned) and ConsumerProtocolAssignment (int16 version; partitions by
topic; user data). Versions 0 to 3 are read, version 0 is written, which every consumer reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.features.groups.messages import Where

CONSUMER_PROTOCOL: Final = "consumer"

_VERSION: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">h")
_FIRST_OWNED_VERSION: Final = 1
_NO_USER_DATA: Final = _COUNT.pack(0)


class ClientSubscription(NamedTuple):
    """The topics that a consumer wants and the partitions it has."""

    topics: tuple[str, ...]
    owned: tuple[Where, ...]


class _Cursor:
    """Reads from the front; `ValueError` or `struct.error` where the bytes are not what they say."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.version = self.number(_VERSION)

    def number(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack_from(self._data, self._at)
        self._at += kind.size
        return int(value)

    def count(self, width: int) -> int:
        """How many things follow, each at least so wide."""
        count = self.number(_COUNT)
        if not 0 <= count <= (len(self._data) - self._at) // width:
            raise ValueError(f"{count} things do not fit")
        return count

    def text(self) -> str:
        return self._take(self.number(_LENGTH)).decode()

    def topics(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.count(_LENGTH.size)))

    def skip_blob(self) -> None:
        size = self.number(_COUNT)
        if size >= 0:
            self._take(size)

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError(f"{size} bytes are not there")
        self._at += size
        return self._data[self._at - size : self._at]

    def places(self) -> tuple[Where, ...]:
        found: list[Where] = []
        for _ in range(self.count(_LENGTH.size + _COUNT.size)):
            topic = self.text()
            found += [(topic, self.number(_COUNT)) for _ in range(self.count(_COUNT.size))]
        return tuple(found)


def read_subscription(metadata: bytes) -> ClientSubscription | None:
    """What a consumer's metadata says; None if it cannot be read."""
    try:
        cursor = _Cursor(metadata)
        topics = cursor.topics()
        cursor.skip_blob()
        return ClientSubscription(topics, cursor.places() if cursor.version >= _FIRST_OWNED_VERSION else ())
    except (struct.error, ValueError):
        return None


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics that a consumer's metadata asks for, whatever comes behind them; None if they cannot be read."""
    try:
        return frozenset(_Cursor(metadata).topics())
    except (struct.error, ValueError):
        return None


def wants_the_same(old: tuple[tuple[str, bytes], ...], new: tuple[tuple[str, bytes], ...]) -> bool:
    """Whether two lists of (protocol, metadata) lead to the same assignment.

    A restarted consumer lists no partitions of its own, so its bytes differ although it wants what it wanted before.
    """
    if [name for name, _ in old] != [name for name, _ in new]:
        return False
    for (_, before), (_, after) in zip(old, new, strict=True):
        topics = topics_of(before)
        if before != after and (topics is None or topics != topics_of(after)):
            return False
    return True


def read_assignment(assignment: bytes) -> tuple[Where, ...]:
    """The partitions in an assignment; none where it cannot be read."""
    try:
        return _Cursor(assignment).places()
    except (struct.error, ValueError):
        return ()


def write_subscription(topics: Iterable[str]) -> bytes:
    """A consumer's wish for topics, in order, so that the same wish is always the same bytes."""
    names = sorted(set(topics))
    return b"".join([_VERSION.pack(0), _COUNT.pack(len(names)), *map(_name, names), _NO_USER_DATA])


def write_assignment(places: Iterable[Where]) -> bytes:
    """An assignment of partitions."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(places):
        by_topic.setdefault(topic, []).append(index)
    parts = [_VERSION.pack(0), _COUNT.pack(len(by_topic))]
    for topic, indexes in by_topic.items():
        parts += [_name(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)]
    return b"".join([*parts, _NO_USER_DATA])


def _name(topic: str) -> bytes:
    encoded = topic.encode()
    return _LENGTH.pack(len(encoded)) + encoded
