"""Kafka's protocol at its barest, over a socket: for tests that send what no client would."""

from __future__ import annotations

import contextlib
import socket
import struct

from penstock.doors.kafka.protocol.headers import encode_request
from penstock.doors.kafka.protocol.messages.cluster import ApiVersionsRequest

_LENGTH = struct.Struct(">i")
_TIMEOUT_S = 10.0


def connect(port: int, timeout_s: float = _TIMEOUT_S) -> socket.socket:
    """A plain connection to a node's Kafka port."""
    return socket.create_connection(("127.0.0.1", port), timeout_s)


def framed(body: bytes) -> bytes:
    """A body behind its true length."""
    return _LENGTH.pack(len(body)) + body


def api_versions(correlation_id: int = 7, version: int = 0) -> bytes:
    """The first request of any client, as a whole frame."""
    return bytes(encode_request(ApiVersionsRequest(), version, correlation_id, "test"))


def read_exactly(conn: socket.socket, size: int) -> bytes | None:
    """``size`` bytes, or None if the other side closes before that; TimeoutError if it does neither."""
    data = bytearray()
    while len(data) < size:
        try:
            part = conn.recv(size - len(data))
        except (ConnectionResetError, BrokenPipeError):
            return None
        if not part:
            return None
        data += part
    return bytes(data)


def read_response(conn: socket.socket) -> bytes | None:
    """The next response without its length, or None if the connection is closed instead."""
    prefix = read_exactly(conn, _LENGTH.size)
    return None if prefix is None else read_exactly(conn, _LENGTH.unpack(prefix)[0])


def ask(port: int, frame: bytes) -> bytes | None:
    """Send one frame on a connection of its own; the response, or None if the node closes the connection."""
    with connect(port) as conn:
        conn.sendall(frame)
        return read_response(conn)


def answers_api_versions(port: int, timeout_s: float = 1.0) -> bool:
    """Whether a node answers ApiVersions without error."""
    with contextlib.suppress(OSError), connect(port, timeout_s) as conn:
        conn.sendall(api_versions(7))
        answer = read_response(conn)
        return answer is not None and struct.unpack_from(">ih", answer) == (7, 0)
    return False
