"""What stays the same from one produce request of a client to its next.

A client repeats itself: API, version, client id, acks, timeout, topic and partition stand in the same bytes of every
request to a partition; only the correlation id and the records differ. A shape remembers those bytes. A frame that
matches needs no decoding beyond the length of its records, and its response is a single `struct` call.

This is about speed alone: whatever a shape answers, the codec in ``produce`` answers too, to the letter, and the tests
hold the two against each other.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.kafka.protocol.apis import PRODUCE
from penstock.kafka.protocol.headers import RequestHeader
from penstock.kafka.protocol.produce import Produce
from penstock.kafka.protocol.varint import read_varint, varint
from penstock.kafka.protocol.wire import compact_string, string

_INT32: Final = struct.Struct(">i")
_FIRST_VERSION: Final = 5  # from here on the response has all its fixed fields
_FIRST_WITH_ERRORS: Final = 8  # from here on record errors and an error message follow
_NO_ERRORS: Final = b"\0\0\0\0\xff\xff"
_NO_ERRORS_FLEXIBLE: Final = b"\1\0\0\0"  # no record errors, no message, no tags of the partition, none of the topic
_NO_THROTTLE: Final = b"\0\0\0\0"
_FLEXIBLE_END: Final = b"\0\0\0"  # no tags of the partition, the topic or the request
_SHAPES_MAX: Final = 1024


class ProduceShape:
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


class ProduceShapes:
    """The shapes one connection has shown so far, all of one version and one length."""

    __slots__ = ("_end", "_is_flexible", "_shapes", "_version")

    def __init__(self) -> None:
        self._version = -1
        self._end = 0
        self._is_flexible = False
        self._shapes: dict[bytes, ProduceShape] = {}

    def find(self, version: int, frame: memoryview) -> tuple[ProduceShape, memoryview] | None:
        """The shape of a frame and its records, if the frame is of a shape that was learned."""
        end = self._end
        if version != self._version or len(frame) < end + 4:
            return None
        shape = self._shapes.get(frame[8:end].tobytes())
        if shape is None:
            return None
        if not self._is_flexible:
            if _INT32.unpack_from(frame, end)[0] != len(frame) - end - 4:
                return None
            return shape, frame[end + 4 :]
        length, start = read_varint(frame, end)
        stop = len(frame) - 3
        if length - 1 != stop - start or frame[stop:].tobytes() != _FLEXIBLE_END:
            return None
        return shape, frame[start:stop]

    def learn(self, header: RequestHeader, request: Produce, frame: memoryview) -> None:
        """Remember the shape of a decoded request, if it goes to one partition and is as plain as most are."""
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
        if (version, end) != (self._version, self._end) or len(self._shapes) >= _SHAPES_MAX:
            self._shapes.clear()
            self._version, self._end, self._is_flexible = version, end, is_flexible
        self._shapes[frame[8:end].tobytes()] = ProduceShape(version, request)
