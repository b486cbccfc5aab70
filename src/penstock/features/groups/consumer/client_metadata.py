"""What consumers of the classic protocol tell each other, read and written where the coordinator stands in for one.

In a group of both kinds the coordinator assigns for everybody, so it has to understand what classic members want and
own, and to write assignments as a leader would. Formats: Kafka's ConsumerProtocolSubscription, versions 0 to 3, and
ConsumerProtocolAssignment, version 0, which every consumer reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

_VERSION: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">h")
_FIRST_OWNED_VERSION: Final = 1

Where = tuple[str, int]  # topic and partition


class Subscription(NamedTuple):
    """The topics that a consumer wants and the partitions it has."""

    topics: tuple[str, ...]
    owned: tuple[Where, ...]


class _Cursor:
    """Reads from the front; `ValueError` or `struct.error` where the bytes are not what they say."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

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


def read_subscription(metadata: bytes) -> Subscription | None:
    """What a consumer's metadata says; None if it cannot be read."""
    cursor = _Cursor(metadata)
    try:
        version = cursor.number(_VERSION)
        topics = tuple(cursor.text() for _ in range(cursor.count(_LENGTH.size)))
        cursor.skip_blob()
        owned = cursor.places() if version >= _FIRST_OWNED_VERSION else ()
    except (struct.error, ValueError):
        return None
    return Subscription(topics, owned)


def read_assignment(assignment: bytes) -> tuple[Where, ...]:
    """The partitions in an assignment; none where it cannot be read."""
    cursor = _Cursor(assignment)
    try:
        cursor.number(_VERSION)
        return cursor.places()
    except (struct.error, ValueError):
        return ()


def write_assignment(partitions: Mapping[str, Iterable[int]]) -> bytes:
    """An assignment of partitions by topic name."""
    out = bytearray(_VERSION.pack(0) + _COUNT.pack(len(partitions)))
    for topic, indexes in sorted(partitions.items()):
        name, numbers = topic.encode(), sorted(indexes)
        out += _LENGTH.pack(len(name)) + name + _COUNT.pack(len(numbers)) + struct.pack(f">{len(numbers)}i", *numbers)
    return bytes(out + _COUNT.pack(-1))
