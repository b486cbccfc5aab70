"""What consumers of a group say to each other inside joins and syncs: Kafka's consumer embedded protocol, version 0.

The broker carries these bytes without looking at them, except for `penstock.features.groups.subscription`. A hosted
member is a consumer like any other, so it has to write what the others read and read what they write. Of later versions
only the beginning is read, which is the same in all of them.

Subscription: int16 version, topics (int32 count; int16 length and name each), user data (int32 length).
Assignment: int16 version, topics (int32 count; name, then int32 count and int32 partitions), user data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from penstock.features.groups.messages import Where

_PREFIX: Final = struct.Struct(">hi")  # version, topics
_LENGTH: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")
_NO_USER_DATA: Final = _COUNT.pack(0)


def encode_subscription(topics: Iterable[str]) -> bytes:
    """A consumer's wish for topics, in order, so that the same wish is always the same bytes."""
    names = sorted(set(topics))
    return b"".join([_PREFIX.pack(0, len(names)), *map(_name, names), _NO_USER_DATA])


def encode_assignment(places: Iterable[Where]) -> bytes:
    """The partitions that a consumer is to read."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(places):
        by_topic.setdefault(topic, []).append(index)
    parts = [_PREFIX.pack(0, len(by_topic))]
    for topic, indexes in by_topic.items():
        parts += [_name(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)]
    return b"".join([*parts, _NO_USER_DATA])


def assigned_to(assignment: bytes) -> list[Where]:
    """The partitions in a consumer's assignment; none where it cannot be read."""
    places: list[Where] = []
    try:
        _, topics = _PREFIX.unpack_from(assignment)
        position = _PREFIX.size
        for _ in range(min(topics, len(assignment))):
            (length,) = _LENGTH.unpack_from(assignment, position)
            position += _LENGTH.size
            name = assignment[position : position + length].decode()
            position += length
            (count,) = _COUNT.unpack_from(assignment, position)
            position += _COUNT.size
            if not 0 <= count <= len(assignment):
                return []
            indexes = struct.unpack_from(f">{count}i", assignment, position)
            position += count * _COUNT.size
            places += [(name, index) for index in indexes]
    except (struct.error, UnicodeDecodeError):
        return []
    return places


def _name(topic: str) -> bytes:
    encoded = topic.encode()
    return _LENGTH.pack(len(encoded)) + encoded
