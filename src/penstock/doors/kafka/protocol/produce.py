"""Produce by hand, for the hot path: records stay where they are in the request's buffer.

The plain form of the same messages is in `messages.records`; the tests hold the two against each other.
Versions 0 to 2 are decoded too, so that they can be refused partition by partition: their records are no batches v2.

A client repeats itself: API, version, client id, acks, timeout, topic and partition are the same bytes in every request
to a partition; only the correlation id and the records differ. A `ProduceTemplate` keeps those bytes. A frame that
matches needs no decoding beyond the length of its records, and its response is a single `struct` call, equal to the one
that the general codec would make.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.doors.kafka.protocol.apis import PRODUCE
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.headers import RequestHeader, begin_response, end_frame
from penstock.doors.kafka.protocol.wire import (
    LeaderHint,
    NodeAddress,
    compact_string,
    node_endpoints_tag,
    nullable_string,
    read_compact_string,
    read_string,
    read_varint,
    skip_tags,
    string,
    varint,
)

FIRST_BATCH_V2_VERSION = 3

_VERSIONS = frozenset(PRODUCE.versions)
_FLEXIBLE = PRODUCE.flexible

_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_ACKS_TIMEOUT_COMPACT_COUNT = struct.Struct(">hiB")
_INDEX_LENGTH = struct.Struct(">ii")
_INDEX_COMPACT_LENGTH = struct.Struct(">iB")
_INT32 = struct.Struct(">i")
_LEADER_TAG = struct.Struct(">bbbiib")


class PartitionRecords(NamedTuple):
    """What goes to one partition: a view of the request's own bytes, good for as long as they are."""

    partition: int
    records: memoryview | None


class TopicRecords(NamedTuple):
    name: str
    partitions: tuple[PartitionRecords, ...]


class Produce(NamedTuple):
    """A produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: tuple[TopicRecords, ...]


class RecordError(NamedTuple):
    """Which record of a batch was refused, and why."""

    batch_index: int
    message: str | None = None


class ProducedPartition(NamedTuple):
    """The answer for one partition; fields that a version lacks are left out of it."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: str | None = None
    current_leader: LeaderHint | None = None


class ProducedTopic(NamedTuple):
    name: str
    partitions: Sequence[ProducedPartition]


# -- the request -------------------------------------------------------------------------------------------------------


def decode_produce_request(version: int, buffer: memoryview, position: int = 0) -> Produce:
    """Read a produce request of any version; ``ProtocolError`` if the bytes are not one."""
    if version not in _VERSIONS:
        raise ProtocolError(f"Produce has no version {version} here.")
    try:
        if version >= _FLEXIBLE:
            return _decode_flexible(buffer, position)
        return _decode_classic(version, buffer, position)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"Produce v{version} is cut short.") from error
    except UnicodeDecodeError as error:
        raise ProtocolError(f"Produce v{version} has a string that is not UTF-8.") from error


def _decode_flexible(buffer: memoryview, position: int) -> Produce:
    # Varints of one byte are read in line: a call costs as much as all the rest of a partition.
    size = len(buffer)
    transactional_id, position = read_compact_string(buffer, position)
    acks, timeout_ms, stated = _ACKS_TIMEOUT_COMPACT_COUNT.unpack_from(buffer, position)
    position += 7
    if stated > 127:
        stated, position = read_varint(buffer, position - 1)
    _check_count(stated - 1, size - position)
    topics = []
    for _ in range(stated - 1):
        name, position = read_compact_string(buffer, position)
        if name is None:
            raise ProtocolError("A topic to produce to has no name.")
        partitions, position = _read_flexible_partitions(buffer, position, size)
        topics.append(TopicRecords(name, partitions))
        position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position)
    if buffer[position]:
        skip_tags(buffer, position)
    return Produce(transactional_id, acks, timeout_ms, tuple(topics))


def _read_flexible_partitions(buffer: memoryview, position: int, size: int) -> tuple[tuple[PartitionRecords, ...], int]:
    stated = buffer[position]
    position += 1
    if stated > 127:
        stated, position = read_varint(buffer, position - 1)
    _check_count(stated - 1, size - position)
    partitions = []
    for _ in range(stated - 1):
        partition, length = _INDEX_COMPACT_LENGTH.unpack_from(buffer, position)
        position += 5
        if length > 127:
            length, position = read_varint(buffer, position - 1)
        end = position + length - 1
        if end >= size:
            raise ProtocolError("Records are longer than what is left of the request.")
        if length:
            partitions.append(PartitionRecords(partition, buffer[position:end]))
            position = end
        else:
            partitions.append(PartitionRecords(partition, None))
        position = position + 1 if buffer[position] == 0 else skip_tags(buffer, position)
    return tuple(partitions), position


def _decode_classic(version: int, buffer: memoryview, position: int) -> Produce:
    size = len(buffer)
    transactional_id = None
    if version >= FIRST_BATCH_V2_VERSION:
        transactional_id, position = read_string(buffer, position)
    acks, timeout_ms, count = _ACKS_TIMEOUT_COUNT.unpack_from(buffer, position)
    position += _ACKS_TIMEOUT_COUNT.size
    _check_count(count, size - position)
    topics = []
    for _ in range(count):
        name, position = read_string(buffer, position)
        if name is None:
            raise ProtocolError("A topic to produce to has no name.")
        count_of_partitions: int = _INT32.unpack_from(buffer, position)[0]
        position += 4
        _check_count(count_of_partitions, size - position)
        partitions = []
        for _ in range(count_of_partitions):
            index, length = _INDEX_LENGTH.unpack_from(buffer, position)
            position += 8
            if length == -1:
                partitions.append(PartitionRecords(index, None))
                continue
            end = position + length
            if not position <= end <= size:
                raise ProtocolError("Records are longer than what is left of the request.")
            partitions.append(PartitionRecords(index, buffer[position:end]))
            position = end
        topics.append(TopicRecords(name, tuple(partitions)))
    return Produce(transactional_id, acks, timeout_ms, tuple(topics))


def _check_count(count: int, left: int) -> None:
    if not 0 <= count <= left:
        raise ProtocolError("A count is more than what is left of the request.")


# -- the response ------------------------------------------------------------------------------------------------------


def encode_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[ProducedTopic],
    *,
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeAddress] = (),
) -> bytearray:
    """A whole response frame: length, header, body."""
    out = begin_response(PRODUCE, version, correlation_id)
    if version >= _FLEXIBLE:
        _write_flexible(out, version, topics, throttle_time_ms, node_endpoints)
    else:
        _write_classic(out, version, topics, throttle_time_ms)
    return end_frame(out)


_FLEXIBLE_PARTITION = struct.Struct(">ihqqq")
_FLEXIBLE_PARTITION_PLAIN = struct.Struct(">ihqqqbbx")


def _write_flexible(
    out: bytearray,
    version: int,
    topics: Sequence[ProducedTopic],
    throttle_time_ms: int,
    node_endpoints: Sequence[NodeAddress],
) -> None:
    has_hints = version >= 10
    out += varint(len(topics) + 1)
    for name, partitions in topics:
        out += compact_string(name)
        out += varint(len(partitions) + 1)
        for index, error, base, append_time_ms, start, record_errors, message, leader in partitions:
            if message is None and leader is None and not record_errors:
                # An empty array is 1, a null string 0, and an empty tag buffer 0.
                out += _FLEXIBLE_PARTITION_PLAIN.pack(index, error, base, append_time_ms, start, 1, 0)
                continue
            out += _FLEXIBLE_PARTITION.pack(index, error, base, append_time_ms, start)
            out += varint(len(record_errors) + 1)
            for record_index, record_message in record_errors:
                out += _INT32.pack(record_index) + compact_string(record_message) + b"\0"
            out += compact_string(message)
            out += b"\0" if leader is None or not has_hints else _LEADER_TAG.pack(1, 0, 9, *leader, 0)
        out.append(0)
    out += _INT32.pack(throttle_time_ms)
    out += node_endpoints_tag(node_endpoints) if has_hints else b"\0"


# By how many of its leading fields a version has.
_CLASSIC_PARTITION = {fields: struct.Struct(">ihqqq"[: 1 + fields]) for fields in (3, 4, 5)}


def _write_classic(out: bytearray, version: int, topics: Sequence[ProducedTopic], throttle_time_ms: int) -> None:
    fields = 5 if version >= 5 else 4 if version >= 2 else 3
    pack = _CLASSIC_PARTITION[fields].pack
    out += _INT32.pack(len(topics))
    for name, partitions in topics:
        out += string(name)
        out += _INT32.pack(len(partitions))
        for partition in partitions:
            out += pack(*partition[:fields])
            if version >= 8:
                out += _INT32.pack(len(partition.record_errors))
                for record_index, record_message in partition.record_errors:
                    out += _INT32.pack(record_index) + nullable_string(record_message)
                out += nullable_string(partition.error_message)
    if version >= 1:
        out += _INT32.pack(throttle_time_ms)


_FIRST_VERSION: Final = 5  # from here on the response has all its fixed fields
_FIRST_WITH_ERRORS: Final = 8  # from here on record errors and an error message follow
_NO_ERRORS: Final = b"\0\0\0\0\xff\xff"
_NO_ERRORS_FLEXIBLE: Final = b"\1\0\0\0"  # no record errors, no message, no tags of the partition, none of the topic
_NO_THROTTLE: Final = b"\0\0\0\0"
_FLEXIBLE_END: Final = b"\0\0\0"  # no tags of the partition, the topic or the request
_TEMPLATES_MAX: Final = 1024


class ProduceTemplate:
    """The constant part of a client's requests to one partition, and of the responses to them."""

    __slots__ = ("_body", "_response", "_tail", "acks", "is_transactional", "partition", "timeout_ms", "topic")

    def __init__(self, version: int, request: Produce) -> None:
        ((self.topic, ((self.partition, _),)),) = request.topics
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.is_transactional = bool(request.transactional_id)
        if PRODUCE.is_flexible(version):
            self._body = b"\0\2" + compact_string(self.topic) + b"\2" + _INT32.pack(self.partition)
            self._tail = _NO_ERRORS_FLEXIBLE + _NO_THROTTLE + b"\0"
        else:
            self._body = _INT32.pack(1) + string(self.topic) + _INT32.pack(1) + _INT32.pack(self.partition)
            self._tail = (_NO_ERRORS if version >= _FIRST_WITH_ERRORS else b"") + _NO_THROTTLE
        self._response = struct.Struct(f">ii{len(self._body)}shqqq{len(self._tail)}s")

    def response(self, correlation_id: int, base_offset: int, append_time_ms: int, start_offset: int) -> bytes:
        """The whole response frame for records that were taken."""
        layout = self._response
        return layout.pack(
            layout.size - 4, correlation_id, self._body, 0, base_offset, append_time_ms, start_offset, self._tail
        )


class ProduceTemplates:
    """The templates one connection has shown so far, all of one version and one length."""

    __slots__ = ("_end", "_is_flexible", "_templates", "_version", "rules_version")

    def __init__(self) -> None:
        self.rules_version = 0  # of the access rules under which they were learned
        self._version = -1
        self._end = 0
        self._is_flexible = False
        self._templates: dict[bytes, ProduceTemplate] = {}

    def find(self, version: int, frame: memoryview) -> tuple[ProduceTemplate, memoryview] | None:
        """The template of a frame and its records, if the frame is of a template that was learned."""
        end = self._end
        if version != self._version or len(frame) < end + 4:
            return None
        template = self._templates.get(frame[8:end].tobytes())
        if template is None:
            return None
        if not self._is_flexible:
            if _INT32.unpack_from(frame, end)[0] != len(frame) - end - 4:
                return None
            return template, frame[end + 4 :]
        length, start = read_varint(frame, end)
        stop = len(frame) - 3
        if length - 1 != stop - start or frame[stop:].tobytes() != _FLEXIBLE_END:
            return None
        return template, frame[start:stop]

    def forget(self, rules_version: int) -> None:
        """Begin anew: what was allowed under earlier rules may not be now."""
        self.rules_version = rules_version
        self._templates.clear()

    def learn(self, header: RequestHeader, request: Produce, frame: memoryview) -> None:
        """Remember the template of a decoded request, if it goes to one partition and is as plain as most are."""
        version = header.api_version
        if version < _FIRST_VERSION:
            return
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return
        records = request.topics[0].partitions[0].records
        if records is None:
            return
        is_flexible = PRODUCE.is_flexible(version)
        if is_flexible:
            end = len(frame) - len(_FLEXIBLE_END) - len(records) - len(varint(len(records) + 1))
        else:
            end = len(frame) - len(records) - 4
        if (version, end) != (self._version, self._end) or len(self._templates) >= _TEMPLATES_MAX:
            self._templates.clear()
            self._version, self._end, self._is_flexible = version, end, is_flexible
        self._templates[frame[8:end].tobytes()] = ProduceTemplate(version, request)
