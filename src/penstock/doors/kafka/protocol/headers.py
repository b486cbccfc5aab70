"""Request and response headers, and the length that frames both.

A request header is version 2 where the request is flexible and version 1 elsewhere; a response header is version 1
where the response is flexible and version 0 elsewhere, except that ApiVersions always answers with version 0, since
the client cannot know yet what the broker speaks (KIP-511).
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeVar

from penstock.doors.kafka.protocol import codec
from penstock.doors.kafka.protocol.apis import API_VERSIONS, APIS
from penstock.doors.kafka.protocol.errors import ProtocolError
from penstock.doors.kafka.protocol.schema import Api, ApiMessage
from penstock.doors.kafka.protocol.wire import Buffer, skip_tags

FRAME_PREFIX_BYTES = 4

_LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")
_FRAMED_REQUEST = struct.Struct(">ihhih")
_FRAMED_RESPONSE = struct.Struct(">ii")

M = TypeVar("M", bound=ApiMessage)


class RequestHeader(NamedTuple):
    """Who asks for what; ``body_position`` is where the body starts, if the API and its version are known here."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int

    @property
    def api(self) -> Api | None:
        """The API asked for, if it is known here at all; the version may still be unknown."""
        return APIS.get(self.api_key)


def read_frame_length(buffer: Buffer, position: int = 0, *, limit: int) -> int:
    """The number of bytes that follow the length prefix; ``ProtocolError`` if that is negative or above the limit."""
    length: int = _LENGTH.unpack_from(buffer, position)[0]
    if not 0 <= length <= limit:
        raise ProtocolError(f"A frame of {length} bytes is not between 0 and {limit}.")
    return length


def read_request_header(buffer: Buffer) -> RequestHeader:
    """Read the header of a request, after its length prefix, be its API known here or not."""
    try:
        key, version, correlation_id, length = _REQUEST.unpack_from(buffer, 0)
        position = _REQUEST.size
        client_id = None
        if length != -1:
            end = position + length
            if not position <= end <= len(buffer):
                raise ProtocolError("The client id is longer than the request.")
            client_id = str(buffer[position:end], "utf-8")
            position = end
        api = APIS.get(key)
        if api is not None and version >= api.flexible:
            position = skip_tags(buffer, position)
    except (struct.error, IndexError) as error:
        raise ProtocolError("The request header is cut short.") from error
    except UnicodeDecodeError as error:
        raise ProtocolError("The client id is not UTF-8.") from error
    return RequestHeader(key, version, correlation_id, client_id, position)


def begin_response(api: Api, version: int, correlation_id: int) -> bytearray:
    """The start of a response frame: room for the length, and the header; ``end_frame`` fills in the length."""
    out = bytearray(_FRAMED_RESPONSE.pack(0, correlation_id))
    if _has_tagged_response_header(api, version):
        out.append(0)
    return out


def end_frame(out: bytearray) -> bytearray:
    """Fill in the length of a frame that was begun with room for it."""
    _LENGTH.pack_into(out, 0, len(out) - FRAME_PREFIX_BYTES)
    return out


def encode_response(message: ApiMessage, version: int, correlation_id: int) -> bytearray:
    """A whole response frame: length, header, body."""
    out = begin_response(message.api, version, correlation_id)
    codec.encode_into(out, message, version)
    return end_frame(out)


def encode_request(message: ApiMessage, version: int, correlation_id: int, client_id: str | None = None) -> bytearray:
    """A whole request frame: length, header, body."""
    api = message.api
    name = b"" if client_id is None else client_id.encode()
    name_length = -1 if client_id is None else len(name)
    out = bytearray(_FRAMED_REQUEST.pack(0, api.key, version, correlation_id, name_length))
    out += name
    if api.is_flexible(version):
        out.append(0)
    codec.encode_into(out, message, version)
    return end_frame(out)


def read_response_header(api: Api, version: int, buffer: Buffer) -> tuple[int, int]:
    """The correlation id of a response, after its length prefix, and the position of the body."""
    try:
        correlation_id: int = _LENGTH.unpack_from(buffer, 0)[0]
        position = _LENGTH.size
        if _has_tagged_response_header(api, version):
            position = skip_tags(buffer, position)
    except (struct.error, IndexError) as error:
        raise ProtocolError("The response header is cut short.") from error
    return correlation_id, position


def decode_response(cls: type[M], version: int, buffer: Buffer) -> tuple[int, M]:
    """The correlation id and the message of a response, after its length prefix."""
    correlation_id, position = read_response_header(cls.api, version, buffer)
    message, _ = codec.decode(cls, version, buffer, position)
    return correlation_id, message


def _has_tagged_response_header(api: Api, version: int) -> bool:
    return api.is_flexible(version) and api.key != API_VERSIONS.key
