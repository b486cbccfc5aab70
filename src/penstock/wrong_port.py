"""Clients at the wrong door: known by their first bytes, told which port they want, and noted in the log.

All ports of a node look alike, so an HTTP client is easily given the Kafka port, or the other way round. Each protocol
begins in its own way; no door takes a beginning of another for one of its own. The answer is one that the client shows:

- HTTP clients get a 400 with a problem document, whose code is ``wrong_port``;
- gRPC clients, which begin with HTTP/2, get the same: they say that they met an HTTP/1 server, and its status;
- TLS clients get it too: they say "wrong version number", by which they mean a port without TLS;
- Kafka clients show no text that comes from a broker. They get an answer to their first request that is well formed and
  says that no broker is available, instead of bytes that they would take for a response of a gigabyte.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

log = logging.getLogger(__name__)

_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")
_HTTP2: Final = b"PRI "
_TLS_HANDSHAKE: Final = b"\x16\x03"
_TLS_MINOR_MAX: Final = 4
_KAFKA_HEAD: Final = struct.Struct(">ihhi")  # length, API key, version, correlation id
_KAFKA_LENGTH_MAX: Final = 100 * 1024 * 1024
_KAFKA_API_KEY_MAX: Final = 200
_KAFKA_VERSION_MAX: Final = 30
_BROKER_NOT_AVAILABLE: Final = 8
_CHALLENGE: Final = b"challenge"  # the first step of the handshake between nodes, docs/formats/peers.md
_GREETING_HEAD_BYTES: Final = 40
_LOG_EVERY_S: Final = 60.0
_DRAIN_S: Final = 1.0
_DRAIN_BYTES: Final = 1024 * 1024


class Protocol(Enum):
    """What a client speaks."""

    HTTP = "HTTP"
    GRPC = "gRPC"
    KAFKA = "the Kafka protocol"
    TLS = "TLS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a node speaks what; None where it does not."""

    kafka: int | None = None
    http: int | None = None
    grpc: int | None = None
    has_tls: bool = False  # all of them, or none


NO_PORTS: Final = Ports()


def recognise(first: bytes | memoryview) -> Protocol | None:
    """The protocol of a client that begins with these bytes; None if none of ours begins like that."""
    begun = bytes(first[: _KAFKA_HEAD.size])
    if begun[:4] in _METHODS:
        return Protocol.HTTP
    if begun[:4] == _HTTP2:
        return Protocol.GRPC
    if begun[:2] == _TLS_HANDSHAKE and begun[2:3] <= bytes((_TLS_MINOR_MAX,)):
        return Protocol.TLS
    if len(begun) == _KAFKA_HEAD.size:
        length, key, version, _ = _KAFKA_HEAD.unpack(begun)
        is_head = 0 <= key <= _KAFKA_API_KEY_MAX and 0 <= version <= _KAFKA_VERSION_MAX
        if _KAFKA_HEAD.size - 4 <= length <= _KAFKA_LENGTH_MAX and is_head:
            return Protocol.KAFKA
    return None


def is_challenge(first: bytes) -> bool:
    """Whether a server begins as a node does at its internal port, to a client that has not spoken by then."""
    return _CHALLENGE in first[:_GREETING_HEAD_BYTES] and not first.startswith(b"HTTP/")


class Guide:
    """What one door tells clients that want another. ``door`` is what it calls itself, as in "the Kafka port"."""

    def __init__(
        self, door: str, own: Protocol | None, ports: Ports, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.door = door
        self._own = own
        self._ports = ports
        self._now = now
        self._told: dict[Protocol, float] = {}

    def answer(self, first: bytes | memoryview, *, client: str, host: str) -> bytes | None:
        """What a client gets that begins with these bytes, if it is at the wrong port; the log has it once a minute.

        ``host`` is the address of ours that it connected to.
        """
        protocol = recognise(first)
        if protocol is None or protocol is self._own:
            return None
        return self._tell(protocol, self._advice(protocol, host), first, client)

    def answer_plain(self, first: bytes | memoryview, *, client: str, host: str) -> bytes | None:
        """What a client gets that begins without TLS where TLS is spoken; None if its protocol is not known."""
        protocol = recognise(first)
        if protocol is None or protocol is Protocol.TLS:
            return None
        if protocol is not self._own:
            advice = self._advice(protocol, host)
        elif protocol is Protocol.KAFKA:
            advice = "It speaks TLS only: set security.protocol to SSL, or SASL_SSL, in the client."
        else:
            advice = "It speaks TLS only: connect with TLS, as in https:// instead of http://."
        return self._tell(protocol, advice, first, client)

    def _tell(self, protocol: Protocol, advice: str, first: bytes | memoryview, client: str) -> bytes:
        detail = f"This is {self.door} of a Penstock node. {advice}"
        now = self._now()
        if now - self._told.get(protocol, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._told[protocol] = now
            log.warning("%s speaks %s to %s. %s", client, protocol.value, self.door, advice)
        if protocol is Protocol.KAFKA:
            return _no_broker(bytes(first[: _KAFKA_HEAD.size]))
        return _bad_request(detail)

    def _advice(self, protocol: Protocol, host: str) -> str:
        shown = f"[{host}]" if ":" in host else host
        if protocol is Protocol.TLS:
            return "It does not speak TLS: connect without, as in http:// instead of https://."
        name, port, scheme = {
            Protocol.HTTP: ("The HTTP address is", self._ports.http, "https://" if self._ports.has_tls else "http://"),
            Protocol.GRPC: ("The gRPC address is", self._ports.grpc, ""),
            Protocol.KAFKA: ("The address for Kafka clients is", self._ports.kafka, ""),
        }[protocol]
        return f"This node does not speak {protocol.value}." if port is None else f"{name} {scheme}{shown}:{port}."


def _bad_request(detail: str) -> bytes:
    problem = {
        "type": "urn:penstock:error:wrong_port",
        "title": "Bad Request",
        "status": 400,
        "detail": detail,
        "instance": "",
        "code": "wrong_port",
        "retriable": False,
    }
    body = json.dumps(problem).encode() + b"\n"
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\n"
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def _no_broker(head: bytes) -> bytes:
    """An ApiVersions response of version 0, which is what every client reads where its request was not understood."""
    *_, correlation_id = _KAFKA_HEAD.unpack(head)
    body = struct.pack(">ihi", correlation_id, _BROKER_NOT_AVAILABLE, 0)
    return struct.pack(">i", len(body)) + body


def dismiss(sock: socket.socket, answer: bytes) -> None:
    """Send an answer and close, but not before the client has read it.

    Closing a socket with bytes that were not read resets the connection, and the client may never see the answer. So
    what it still sends is read and dropped for a moment.
    """
    loop = asyncio.get_running_loop()
    left = _DRAIN_BYTES
    sock.setblocking(False)  # noqa: FBT003

    def end() -> None:
        timer.cancel()
        loop.remove_reader(sock.fileno())
        sock.close()

    def drain() -> None:
        nonlocal left
        try:
            got = len(sock.recv(65536))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            got = 0
        left -= got
        if got == 0 or left <= 0:
            end()

    timer = loop.call_later(_DRAIN_S, end)
    loop.add_reader(sock.fileno(), drain)
    with suppress(OSError):
        sock.send(answer)
        sock.shutdown(socket.SHUT_WR)
