"""Headers and frames, byte by byte and against kafka-python's."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsRequest as TheirApiVersionsRequest
from kafka.protocol.metadata import MetadataRequest as TheirMetadataRequest

from penstock.doors.kafka.protocol import apis
from penstock.doors.kafka.protocol.codec import decode
from penstock.doors.kafka.protocol.errors import ErrorCode, ProtocolError
from penstock.doors.kafka.protocol.headers import (
    RequestHeader,
    decode_response,
    encode_request,
    encode_response,
    read_frame_length,
    read_request_header,
    read_response_header,
)
from penstock.doors.kafka.protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)


def test_classic_header_has_no_tag_buffer() -> None:
    raw = struct.pack(">hhih", 3, 8, 77, 2) + b"me" + b"body"
    assert read_request_header(raw) == RequestHeader(3, 8, 77, "me", 12)


def test_flexible_header_ends_after_its_tag_buffer() -> None:
    raw = struct.pack(">hhih", 3, 9, 77, 2) + b"me" + b"\x01\x05\x03abc" + b"body"
    header = read_request_header(memoryview(raw))
    assert raw[header.body_position :] == b"body"


def test_client_id_may_be_null() -> None:
    assert read_request_header(struct.pack(">hhih", 3, 0, 1, -1)) == RequestHeader(3, 0, 1, None, 10)


def test_unknown_api_still_has_key_version_and_correlation_id() -> None:
    header = read_request_header(struct.pack(">hhih", 9999, 42, 5, -1) + b"\xff\xff")
    assert header[:4] == (9999, 42, 5, None)
    assert header.api is None


def test_future_version_of_a_known_api_is_read() -> None:
    header = read_request_header(struct.pack(">hhih", 18, 99, 5, -1) + b"\0")
    assert header.api is apis.API_VERSIONS
    assert not header.api.supports(header.api_version)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\3\0\0\0\0\0",
        struct.pack(">hhih", 3, 0, 1, 5) + b"four",
        struct.pack(">hhih", 3, 0, 1, -2),
        struct.pack(">hhih", 3, 0, 1, 2) + b"\xff\xfe",
        struct.pack(">hhih", 3, 9, 1, -1),
        struct.pack(">hhih", 3, 9, 1, -1) + b"\xff\xff\xff\xff\x0f",
        struct.pack(">hhih", 3, 9, 1, -1) + b"\x01\x00\xff\xff\xff\xff\x0f",
    ],
)
def test_malformed_header_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_request_header(raw)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_refused(raw: bytes) -> None:
    try:
        header = read_request_header(raw)
    except ProtocolError:
        return
    assert header.body_position <= len(raw)


@pytest.mark.parametrize("length", [-1, 101, 2**31 - 1, -(2**31)])
def test_frame_length_out_of_bounds_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError):
        read_frame_length(struct.pack(">i", length), limit=100)


def test_frame_length_is_what_follows_it() -> None:
    frame = encode_request(MetadataRequest(topics=None), 12, 9, "me")
    assert read_frame_length(frame, limit=1000) == len(frame) - 4


@pytest.mark.parametrize("version", apis.METADATA.versions)
def test_request_frame_is_the_one_kafka_python_writes(version: int) -> None:
    theirs = TheirMetadataRequest(topics=[], version=version)
    theirs.with_header(correlation_id=9, client_id="me")
    assert encode_request(MetadataRequest(topics=()), version, 9, "me") == theirs.encode(header=True, framed=True)


@pytest.mark.parametrize("version", apis.API_VERSIONS.versions)
def test_api_versions_request_frame_is_the_one_kafka_python_writes(version: int) -> None:
    names = {"client_software_name": "n", "client_software_version": "1"} if version >= 3 else {}
    theirs = TheirApiVersionsRequest(version=version, **names)
    theirs.with_header(correlation_id=9, client_id=None)
    assert encode_request(ApiVersionsRequest(**names), version, 9) == theirs.encode(header=True, framed=True)


@pytest.mark.parametrize("version", apis.API_VERSIONS.versions)
def test_api_versions_answers_with_header_version_0(version: int) -> None:
    message = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=(ApiVersion(api_key=18, min_version=0, max_version=4),)
    )
    frame = encode_response(message, version, 6)
    assert decode(ApiVersionsResponse, version, frame, 8) == (message, len(frame))


@pytest.mark.parametrize("version", apis.METADATA.versions)
def test_response_frame_is_read_back(version: int) -> None:
    message = MetadataResponse(brokers=(), topics=())
    frame = memoryview(encode_response(message, version, 6))
    assert read_frame_length(frame, limit=1000) == len(frame) - 4
    assert decode_response(MetadataResponse, version, frame[4:]) == (6, message)
    assert read_response_header(apis.METADATA, version, frame[4:]) == (6, 5 if version >= 9 else 4)
