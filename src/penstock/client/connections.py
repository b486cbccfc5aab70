"""HTTP/1.1 connections to nodes: kept alive, one whole answer at a time.

If a connection breaks before its answer is complete, it is unknown whether the node did what it was asked;
`NotConnected` says that nothing was sent. Giving up on an answer closes its connection, so that the node sees its
client leave.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import httptools

from penstock.client.calls import Body, Pieces
from penstock.client.trust import explain
from penstock.wrong_port import is_challenge

HostAndPort = tuple[str, int]
HeaderList = list[tuple[bytes, bytes]]

CONNECT_TIMEOUT_SECONDS: Final = 2.0
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_IDLE_MAX: Final = 32  # connections kept for each node
_IDLE_SECONDS: Final = 30.0
_HEAD_BYTES_MAX: Final = 64 * 1024
_SCRATCH_BYTES: Final = 16 * 1024
_JOINED_BYTES_MAX: Final = 32 * 1024  # below this, copying is cheaper than writing in pieces
_TOO_LARGE: Final = f"its answer is larger than {_ANSWER_BYTES_MAX} bytes"
_BEGINNING: Final = b"HTTP/1."
# The first frame of an HTTP/2 server: a length of three bytes, then this type.
_SETTINGS: Final = b"\4"
_SETTINGS_BYTES: Final = 4
_STATUS_DIGITS: Final = 3
_OK: Final = 200
_WITHOUT_BODY: Final = frozenset({204, 304})


class NotConnected(ConnectionError):
    """There is no connection, so nothing was sent."""


class OtherDoor(ConnectionError):
    """What answers is another port of a node: its message says which."""


class HttpAnswer(NamedTuple):
    status: int
    headers: HeaderList
    body: bytes | bytearray


# Called with the answer, or with why there is none.
Done = Callable[[HttpAnswer | OSError], None]


class _Chunked:
    """An answer without a content-length, assembled by a parser."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self.size = 0
        self.is_complete = False

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        self.size += len(part)
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self.is_complete = True

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)


class HttpConnection(asyncio.BufferedProtocol):
    """One connection: a request out, an answer in, and again.

    Nearly every answer has a content-length. Its body is then read into a buffer of that size, without a copy. Heads
    are often the same for a second, and such a head is parsed once.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: Done | None = None  # while a caller waits
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._head = b""
        self._last_head = b""  # and its content-length
        self._last_length: int | None = None
        self._status = 0
        self._headers: HeaderList = []
        self._is_last = False  # the node closes the connection after this answer
        self._body: bytearray | None = None
        self._room = self._view  # where the next bytes go
        self._chunked: _Chunked | None = None
        self.is_open = False
        self.has_heard = False  # anything of the answer under way
        self.idle_since = 0.0

    # -- the transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.has_heard = True
        try:
            if self._body is not None:
                self._room = self._room[nbytes:]
                if not self._room:
                    self._finish(self._body)
            else:
                self._feed(bytes(self._view[:nbytes]))
        except (httptools.HttpParserError, ValueError, IndexError) as error:
            self._fail(f"its answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "it closed the connection")

    # -- an answer ----------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        """Take data until the length of the body is known."""
        if self._done is None:
            self._fail("it sent data without a request")
            return
        if self._chunked is not None:
            self._feed_chunked(self._chunked, data)
            return
        if self._head:
            data = self._head + data
        if data[:_SETTINGS_BYTES].endswith(_SETTINGS) and data.startswith(b"\0"):
            self._give_up(OtherDoor("a gRPC port"))
            return
        if is_challenge(data):
            self._give_up(OtherDoor("the internal port of a node, for other nodes"))
            return
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._head = data
            if not data.startswith(_BEGINNING[: len(data)]):
                raise ValueError(f"an answer does not begin with {data[:40]!r}")
            if len(data) > _HEAD_BYTES_MAX:
                self._fail(f"the head of its answer is larger than {_HEAD_BYTES_MAX} bytes")
            return
        length = self._read_head(data[:end])
        if length is None:
            self._chunked = _Chunked()
            self._feed_chunked(self._chunked, data)
            return
        begun = data[end + 4 :]
        if length > _ANSWER_BYTES_MAX:
            self._fail(_TOO_LARGE)
        elif len(begun) >= length:
            self.is_open &= len(begun) == length  # bytes beyond it belong to no answer
            self._finish(begun[:length])
        else:
            self._body = bytearray(length)
            self._body[: len(begun)] = begun
            self._room = memoryview(self._body)[len(begun) :]

    def _read_head(self, head: bytes) -> int | None:
        """Note status and headers; returns the length of the body, None if the head does not give it."""
        if head == self._last_head:
            return self._last_length
        self._headers, self._last_head = [], b""
        length = self._read_new_head(head)
        self._last_head, self._last_length = head, length
        return length

    def _read_new_head(self, head: bytes) -> int | None:
        line, *fields = head.split(b"\r\n")
        version, status, *_ = line.split(b" ", 2)
        if not version.startswith(_BEGINNING) or len(status) != _STATUS_DIGITS:
            raise ValueError(f"an answer does not begin with {line[:40]!r}")
        self._status = int(status)
        self._is_last = version == b"HTTP/1.0"
        length: int | None = None
        is_coded = False
        for field in fields:
            name, colon, value = field.partition(b":")
            if not colon:
                raise ValueError(f"{field[:40]!r} is not a header")
            name, value = name.lower(), value.strip()
            self._headers.append((name, value))
            if name == b"content-length":
                if not value.isdigit() or length not in {None, int(value)}:
                    raise ValueError(f"{value[:40]!r} is not a length")
                length = int(value)
            elif name == b"transfer-encoding":
                is_coded = True
            elif name == b"connection":
                self._is_last |= value.lower() == b"close"
        if self._status in _WITHOUT_BODY:
            return 0
        return None if is_coded or self._status < _OK else length

    def _feed_chunked(self, chunked: _Chunked, data: bytes) -> None:
        chunked.feed(data)
        if chunked.size > _ANSWER_BYTES_MAX:
            self._fail(_TOO_LARGE)
        elif chunked.is_complete:
            self._finish(chunked.body)

    def _finish(self, body: bytes | bytearray) -> None:
        self._body, self._room = None, self._view
        if self._is_last or not self.is_open:
            self.close()
        done, self._done = self._done, None
        if done is not None:
            done(HttpAnswer(self._status, self._headers, body))

    # -- requests -----------------------------------------------------------------------------------------------------

    def start(self, request: Pieces, done: Done) -> None:
        """Send a request; ``done`` is called once, with the answer or with what went wrong."""
        assert self._done is None, "one request at a time"
        assert self._transport is not None, "a connection that was made"
        self._head, self._chunked, self.has_heard = b"", None, False
        self._done = done
        self._transport.writelines(request)

    async def ask(self, request: Pieces) -> HttpAnswer:
        waiting: asyncio.Future[HttpAnswer] = asyncio.get_running_loop().create_future()

        def done(outcome: HttpAnswer | OSError) -> None:
            if waiting.done():
                return
            if isinstance(outcome, HttpAnswer):
                waiting.set_result(outcome)
            else:
                waiting.set_exception(outcome)

        self.start(request, done)
        try:
            return await waiting
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def expire(self, timeout_s: float) -> None:
        """Give up: there was no answer in time."""
        self._give_up(_too_late(timeout_s))

    def _fail(self, reason: str) -> None:
        self._give_up(ConnectionError(reason))

    def _give_up(self, error: OSError) -> None:
        self.close()
        done, self._done = self._done, None
        if done is not None:
            done(error)


def _too_late(timeout_s: float) -> TimeoutError:
    return TimeoutError(f"no answer within {timeout_s:g} s")


class ConnectionPool:
    """Connections to any number of nodes, a few kept for each; with ``tls``, to nodes behind TLS."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._idle: dict[HostAndPort, list[HttpConnection]] = {}
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def ask(
        self,
        address: HostAndPort,
        method: str,
        target: bytes,
        headers: HeaderList,
        body: Body,
        timeout_s: float,
        *,
        can_repeat: bool,
    ) -> HttpAnswer:
        """The answer of the node at ``address``; see `send`."""
        lines = [b"%s %s HTTP/1.1\r\n" % (method.encode(), target)]
        lines += [b"%s: %s\r\n" % header for header in headers]
        request = request_of(b"".join(lines), body)
        return await self.send(address, request, timeout_s, can_repeat=can_repeat)

    async def send(self, address: HostAndPort, request: Pieces, timeout_s: float, *, can_repeat: bool) -> HttpAnswer:
        """Send a request that is bytes already, and return the answer.

        A kept connection that turns out to be dead is replaced once if the request ``can_repeat``. Raises
        `NotConnected` if nothing was sent, another `ConnectionError` if that is unknown, `TimeoutError` if there is
        no answer in time.
        """
        kept = self.take(address)
        if kept is not None:
            timer = asyncio.get_running_loop().call_later(timeout_s, kept.expire, timeout_s)
            try:
                answer = await kept.ask(request)
            except ConnectionError:
                if not can_repeat or kept.has_heard:
                    raise
            else:
                self.keep(address, kept)
                return answer
            finally:
                timer.cancel()
        try:
            async with asyncio.timeout(timeout_s):
                fresh = await self._connect(address)
                answer = await fresh.ask(request)
        except TimeoutError:
            raise _too_late(timeout_s) from None
        self.keep(address, fresh)
        return answer

    async def _connect(self, address: HostAndPort) -> HttpConnection:
        host, port = address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                _, fresh = await loop.create_connection(HttpConnection, host, port, ssl=self._tls)
        except TimeoutError:
            raise NotConnected(f"no connection within {CONNECT_TIMEOUT_SECONDS:g} s") from None
        except OSError as error:
            raise NotConnected(explain(error)) from error
        return fresh

    def keep(self, address: HostAndPort, connection: HttpConnection) -> None:
        """Keep a connection whose answer is complete."""
        kept = self._idle.setdefault(address, [])
        if connection.is_open and len(kept) < _IDLE_MAX and not self._is_closed:
            connection.idle_since = asyncio.get_running_loop().time()
            kept.append(connection)
        else:
            connection.close()

    def take(self, address: HostAndPort) -> HttpConnection | None:
        """A kept connection; None if a new one has to be made."""
        kept = self._idle.get(address)
        if not kept:
            return None
        now = asyncio.get_running_loop().time()
        while kept:
            connection = kept.pop()
            if connection.is_open and now - connection.idle_since < _IDLE_SECONDS:
                return connection
            connection.close()
        return None


def request_of(head: bytes, body: Body) -> Pieces:
    """A request in pieces; ``head`` is all of its head but the content-length, which comes last."""
    parts = (body,) if isinstance(body, bytes | bytearray) else body
    size = sum(map(len, parts))
    line = b"%bcontent-length: %d\r\n\r\n" % (head, size)
    return (b"".join((line, *parts)),) if size <= _JOINED_BYTES_MAX else (line, *parts)
