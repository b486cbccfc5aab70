"""Fetch by hand, for the hot path: a response is a list of pieces, and records are never touched.

The encoder only asks a payload for its length, so it may as well be a range of a file that is still to be sent by
``sendfile``. The plain form of the same messages is in `messages.records`; the tests hold the two against each other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence, Sized
from functools import partial
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from penstock.doors.kafka.protocol.apis import FETCH
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.headers import FRAME_PREFIX_BYTES, begin_response
from penstock.doors.kafka.protocol.schema import NO_UUID
from penstock.doors.kafka.protocol.wire import (
    LeaderHint,
    NodeAddress,
    compact_string,
    node_endpoints_tag,
    read_compact_string,
    read_string,
    read_varint,
    skip_tags,
    string,
    varint,
)

FIRST_TOPIC_ID_VERSION = 13

P = TypeVar("P", bound=Sized)

_VERSIONS = frozenset(FETCH.versions)
_FLEXIBLE = FETCH.flexible

_INT32 = struct.Struct(">i")


class PartitionFetch(NamedTuple):
    """Where to read one partition from; the order of the fields is that of version 12 on the wire."""

    partition: int
    current_leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class TopicFetch(NamedTuple):
    """Named up to version 12, known by its id from version 13; the other one is empty."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionFetch, ...]


class ForgottenTopicFetch(NamedTuple):
    """Partitions to drop from the fetch session."""

    name: str
    topic_id: UUID
    partitions: tuple[int, ...]


class Fetch(NamedTuple):
    """A fetch request."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: tuple[TopicFetch, ...]
    forgotten: tuple[ForgottenTopicFetch, ...]
    rack_id: str


class AbortedRange(NamedTuple):
    """From which offset on a producer's records belong to a transaction that was aborted."""

    producer_id: int
    first_offset: int


class DivergingEpoch(NamedTuple):
    """Where the caller's log parts from the leader's (KIP-595)."""

    epoch: int
    end_offset: int


class FetchedPartition(NamedTuple, Generic[P]):
    """The answer for one partition; no records and an empty payload are the same on the wire."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[AbortedRange] | None = None
    preferred_read_replica: int = -1
    records: P | None = None
    diverging_epoch: DivergingEpoch | None = None
    current_leader: LeaderHint | None = None


class FetchedTopic(NamedTuple, Generic[P]):
    name: str
    partitions: Sequence[FetchedPartition[P]]
    topic_id: UUID = NO_UUID


class FetchFrame(NamedTuple, Generic[P]):
    """A response in the pieces to send, one after the other, and their length altogether, prefix included."""

    pieces: list[bytes | bytearray | P]
    size: int


# -- the request -------------------------------------------------------------------------------------------------------

_HEAD = struct.Struct(">iiiibii")
_HEAD_WITHOUT_SESSION = struct.Struct(">iiiib")
_HEAD_WITHOUT_REPLICA = struct.Struct(">iiibii")
_FLEXIBLE_PARTITION = struct.Struct(">iiqiqix")
# A row of version 12 has the fields of ``PartitionFetch`` in its order, so it only wants the name.
_as_partition: Callable[[tuple[int, ...]], PartitionFetch] = partial(tuple.__new__, PartitionFetch)


def decode_fetch_request(version: int, buffer: memoryview, position: int = 0) -> Fetch:
    """Read a fetch request of any version; ``ProtocolError`` if the bytes are not one."""
    if version not in _VERSIONS:
        raise ProtocolError(f"Fetch has no version {version} here.")
    try:
        if version >= _FLEXIBLE:
            return _decode_flexible(version, buffer, position)
        return _decode_classic(version, buffer, position)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"Fetch v{version} is cut short.") from error
    except UnicodeDecodeError as error:
        raise ProtocolError(f"Fetch v{version} has a string that is not UTF-8.") from error


def _decode_flexible(version: int, buffer: memoryview, position: int) -> Fetch:
    if version < 15:
        head = _HEAD.unpack_from(buffer, position)
        position += _HEAD.size
    else:
        # The replica's id has moved to a tagged field, which only Kafka's own followers send.
        head = (-1, *_HEAD_WITHOUT_REPLICA.unpack_from(buffer, position))
        position += _HEAD_WITHOUT_REPLICA.size
    topics = []
    count, position = _read_compact_count(buffer, position, 1)
    for _ in range(count):
        name, topic_id, position = _read_flexible_topic(version, buffer, position)
        partitions, position = _read_flexible_partitions(buffer, position)
        topics.append(TopicFetch(name, topic_id, partitions))
        position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position)
    forgotten = []
    count, position = _read_compact_count(buffer, position, 1)
    for _ in range(count):
        name, topic_id, position = _read_flexible_topic(version, buffer, position)
        length, position = _read_compact_count(buffer, position, 4)
        indexes = struct.unpack_from(f">{length}i", buffer, position)
        forgotten.append(ForgottenTopicFetch(name, topic_id, indexes))
        position = skip_tags(buffer, position + 4 * length)
    rack_id, position = read_compact_string(buffer, position)
    if rack_id is None:
        raise ProtocolError("A fetch has no rack, not even an empty one.")
    if buffer[position]:
        skip_tags(buffer, position)
    return Fetch._make((*head, tuple(topics), tuple(forgotten), rack_id))


def _read_flexible_topic(version: int, buffer: memoryview, position: int) -> tuple[str, UUID, int]:
    if version >= FIRST_TOPIC_ID_VERSION:
        end = position + 16
        if end > len(buffer):
            raise ProtocolError("A topic id is cut short.")
        return "", UUID(bytes=bytes(buffer[position:end])), end
    name, position = read_compact_string(buffer, position)
    if name is None:
        raise ProtocolError("A topic to fetch has no name.")
    return name, NO_UUID, position


def _read_flexible_partitions(buffer: memoryview, position: int) -> tuple[tuple[PartitionFetch, ...], int]:
    width = _FLEXIBLE_PARTITION.size
    count, position = _read_compact_count(buffer, position, width)
    end = position + count * width
    tags = bytes(buffer[position + width - 1 : end : width])
    if tags.count(0) == count:
        # No partition has tagged fields, so that all are of one width.
        return tuple(map(_as_partition, _FLEXIBLE_PARTITION.iter_unpack(buffer[position:end]))), end
    partitions = []
    for _ in range(count):
        partitions.append(PartitionFetch(*_FLEXIBLE_PARTITION.unpack_from(buffer, position)))
        position = skip_tags(buffer, position + width - 1)
    return tuple(partitions), position


def _read_compact_count(buffer: memoryview, position: int, least_size: int) -> tuple[int, int]:
    stated, position = read_varint(buffer, position)
    count = stated - 1
    if not 0 <= count * least_size <= len(buffer) - position:
        raise ProtocolError("A count is more than what is left of the request.")
    return count, position


def _read_count(buffer: memoryview, position: int, least_size: int) -> tuple[int, int]:
    count: int = _INT32.unpack_from(buffer, position)[0]
    position += 4
    if not 0 <= count * least_size <= len(buffer) - position:
        raise ProtocolError("A count is more than what is left of the request.")
    return count, position


def _decode_classic(version: int, buffer: memoryview, position: int) -> Fetch:
    if version >= 7:
        head = _HEAD.unpack_from(buffer, position)
        position += _HEAD.size
    else:
        head = (*_HEAD_WITHOUT_SESSION.unpack_from(buffer, position), 0, -1)
        position += _HEAD_WITHOUT_SESSION.size
    topics = []
    count, position = _read_count(buffer, position, 6)
    for _ in range(count):
        name, position = _read_name(buffer, position)
        partitions, position = _read_classic_partitions(version, buffer, position)
        topics.append(TopicFetch(name, NO_UUID, partitions))
    forgotten = []
    if version >= 7:
        count, position = _read_count(buffer, position, 6)
        for _ in range(count):
            name, position = _read_name(buffer, position)
            length, position = _read_count(buffer, position, 4)
            indexes = struct.unpack_from(f">{length}i", buffer, position)
            position += 4 * length
            forgotten.append(ForgottenTopicFetch(name, NO_UUID, indexes))
    rack_id = _read_name(buffer, position)[0] if version >= 11 else ""
    return Fetch._make((*head, tuple(topics), tuple(forgotten), rack_id))


def _read_name(buffer: memoryview, position: int) -> tuple[str, int]:
    name, position = read_string(buffer, position)
    if name is None:
        raise ProtocolError("A name in a fetch is null.")
    return name, position


_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")


def _read_classic_partitions(version: int, buffer: memoryview, position: int) -> tuple[tuple[PartitionFetch, ...], int]:
    layout = _PARTITION_V9 if version >= 9 else _PARTITION_V5 if version >= 5 else _PARTITION_V4
    count, position = _read_count(buffer, position, layout.size)
    end = position + count * layout.size
    rows = layout.iter_unpack(buffer[position:end])
    if version >= 9:
        partitions = [PartitionFetch(i, epoch, offset, -1, start, limit) for i, epoch, offset, start, limit in rows]
    elif version >= 5:
        partitions = [PartitionFetch(i, -1, offset, -1, start, limit) for i, offset, start, limit in rows]
    else:
        partitions = [PartitionFetch(i, -1, offset, -1, -1, limit) for i, offset, limit in rows]
    return tuple(partitions), end


# -- the response ------------------------------------------------------------------------------------------------------

_RESPONSE_V7 = struct.Struct(">ihi")
_RESPONSE_PARTITION = struct.Struct(">ihqqq")
_RESPONSE_PARTITION_V4 = struct.Struct(">ihqq")
_RESPONSE_PARTITION_PLAIN = struct.Struct(">ihqqqxi")
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">bbiqb")
_LEADER = struct.Struct(">bbiib")


def encode_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[FetchedTopic[P]],
    *,
    throttle_time_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeAddress] = (),
) -> FetchFrame[P]:
    """A whole response frame, length prefix and header included, with the payloads between its own bytes."""
    out = begin_response(FETCH, version, correlation_id)
    if version >= 7:
        out += _RESPONSE_V7.pack(throttle_time_ms, error_code, session_id)
    else:
        out += _INT32.pack(throttle_time_ms)
    pieces: list[bytes | bytearray | P] = [out]
    if version >= _FLEXIBLE:
        _write_flexible(pieces, out, version, topics, node_endpoints)
    else:
        _write_classic(pieces, out, version, topics)
    if not pieces[-1]:
        pieces.pop()
    size = sum(map(len, pieces))
    first = pieces[0]
    assert isinstance(first, bytearray)
    _INT32.pack_into(first, 0, size - FRAME_PREFIX_BYTES)
    return FetchFrame(pieces, size)


def _write_flexible(
    pieces: list[bytes | bytearray | P],
    out: bytearray,
    version: int,
    topics: Sequence[FetchedTopic[P]],
    node_endpoints: Sequence[NodeAddress],
) -> None:
    out += varint(len(topics) + 1)
    for name, partitions, topic_id in topics:
        out += topic_id.bytes if version >= FIRST_TOPIC_ID_VERSION else compact_string(name)
        out += varint(len(partitions) + 1)
        for partition in partitions:
            index, error, high, stable, start, aborted, preferred, records, diverging, leader = partition
            if aborted is None:
                out += _RESPONSE_PARTITION_PLAIN.pack(index, error, high, stable, start, preferred)
            else:
                out += _RESPONSE_PARTITION.pack(index, error, high, stable, start) + varint(len(aborted) + 1)
                for transaction in aborted:
                    out += _ABORTED.pack(*transaction)
                    out.append(0)
                out += _INT32.pack(preferred)
            if records is None or not (length := len(records)):
                out.append(1)
            else:
                out += varint(length + 1)
                out = bytearray()
                pieces += (records, out)
            if diverging is None and leader is None:
                out.append(0)
            else:
                out += _partition_tags(diverging, leader)
        out.append(0)
    out += node_endpoints_tag(node_endpoints) if version >= 16 else b"\0"


def _partition_tags(diverging: DivergingEpoch | None, leader: LeaderHint | None) -> bytes:
    tags = b""
    if diverging is not None:
        tags += _DIVERGING.pack(0, 13, *diverging, 0)
    if leader is not None:
        tags += _LEADER.pack(1, 9, *leader, 0)
    return varint((diverging is not None) + (leader is not None)) + tags


def _write_classic(
    pieces: list[bytes | bytearray | P], out: bytearray, version: int, topics: Sequence[FetchedTopic[P]]
) -> None:
    out += _INT32.pack(len(topics))
    for name, partitions, _ in topics:
        out += string(name)
        out += _INT32.pack(len(partitions))
        for partition in partitions:
            index, error, high, stable, start, aborted, preferred, records, _, _ = partition
            if version >= 5:
                out += _RESPONSE_PARTITION.pack(index, error, high, stable, start)
            else:
                out += _RESPONSE_PARTITION_V4.pack(index, error, high, stable)
            out += _INT32.pack(-1 if aborted is None else len(aborted))
            for transaction in aborted or ():
                out += _ABORTED.pack(*transaction)
            if version >= 11:
                out += _INT32.pack(preferred)
            length = 0 if records is None else len(records)
            out += _INT32.pack(length)
            if records is not None and length:
                out = bytearray()
                pieces += (records, out)
