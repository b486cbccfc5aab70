"""The one thing that a broker reads in a consumer's metadata: the topics it wants.

Metadata belongs to the members. But whether a restarted static member wants something else, and whether a topic's
offsets are still of use to anybody, can only be told from there. What cannot be read counts as unknown, never as
nothing. Format: Kafka's ConsumerProtocolSubscription, all versions: int16 version, int32 count, int16-prefixed names.
"""

from __future__ import annotations

import struct
from typing import Final

CONSUMER_PROTOCOL: Final = "consumer"

_PREFIX: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics that a consumer's metadata asks for; None if it cannot be read."""
    try:
        _, count = _PREFIX.unpack_from(metadata)
        if not 0 <= count <= len(metadata) // _LENGTH.size:
            return None
        topics = []
        position = _PREFIX.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if not 0 <= length <= len(metadata) - position:
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


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
