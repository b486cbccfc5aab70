"""Which partition a record goes to, agreed with every Kafka client: the same key lands on the same partition.

``murmur2`` is Kafka's hash bit for bit. Anything with a ``partition`` method of the Protocol's shape can stand in.
"""

from __future__ import annotations

from itertools import count
from struct import unpack_from
from typing import Final, Protocol

from penstock.errors import InvalidPartitions

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_UINT32: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


class Partitioner(Protocol):
    def partition(self, key: bytes | None, partition_count: int) -> int:
        """Return a partition from 0 up to, not including, ``partition_count``."""


class RoundRobin:
    """Each record to the next partition, whatever its key."""

    def __init__(self, start: int = 0) -> None:
        self._turns = count(start)

    def partition(self, key: bytes | None, partition_count: int) -> int:  # noqa: ARG002
        return next(self._turns) % _at_least_one(partition_count)


class KeyHash:
    """A key always to the same partition, as Java's default does it; records without a key to ``without_key``."""

    def __init__(self, without_key: Partitioner | None = None) -> None:
        self._without_key = without_key or RoundRobin()

    def partition(self, key: bytes | None, partition_count: int) -> int:
        if key is None:
            return self._without_key.partition(key, partition_count)
        return key_hash(key) % _at_least_one(partition_count)


def key_hash(key: bytes) -> int:
    """Hash a key to 31 bits, as Kafka takes it modulo the number of partitions."""
    return murmur2(key) & _POSITIVE


def murmur2(key: bytes) -> int:
    """Hash a key to an unsigned 32-bit number (Java shows the same bits as a signed one)."""
    size = len(key)
    value = _SEED ^ size
    words = size >> 2
    # Products are cut to 32 bits only where a right shift or the result would show the excess.
    for word in unpack_from(f"<{words}I", key):
        word = word * _MULTIPLIER & _UINT32
        value = (value * _MULTIPLIER ^ (word ^ word >> 24) * _MULTIPLIER) & _UINT32
    if size & 3:
        value = (value ^ int.from_bytes(key[words << 2 :], "little")) * _MULTIPLIER & _UINT32
    value = (value ^ value >> 13) * _MULTIPLIER & _UINT32
    return value ^ value >> 15


def _at_least_one(partition_count: int) -> int:
    if partition_count < 1:
        raise InvalidPartitions("There is no partition to choose from.")
    return partition_count
