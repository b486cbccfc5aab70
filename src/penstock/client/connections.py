"""HTTP/1.1 connections to nodes: kept alive, a whole answer at a time.

Below the client and below the door, which hands requests on to other nodes. A connection that breaks before its answer
is there leaves unknown whether the node did what it was asked; where there is no connection at all, `NotConnected` says
that nothing was asked. Giving up on an answer closes its connection, so that the node sees its client go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import httptools

Address = tuple[str, int]
HeaderList = list[tuple[bytes, bytes]]
Body = bytes | bytearray | Sequence[bytes | bytearray]  # whole, or in pieces, so that large ones need not be copied

CONNECT_TIMEOUT_SECONDS: Final = 2.0
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_IDLE_MAX: Final = 32  # connections kept for each node
_IDLE_SECONDS: Final = 30.0
_HEAD_BYTES_MAX: Final = 64 * 1024
_SCRATCH_BYTES: Final = 16 * 1024
_TOO_LARGE: Final = f"its answer is larger than {_ANSWER_BYTES_MAX} bytes"
_BEGINNING: Final = b"HTTP/1."
_STATUS_DIGITS: Final = 3
_OK: Final = 200
_WITHOUT_BODY: Final = frozenset({204, 304})


class NotConnected(ConnectionError):
    """There is no connection, so nothing was asked."""


class Answer(NamedTuple):
    status: int
    headers: HeaderList
    body: bytes | bytearray


class _Chunked:
    """An answer whose length is not told beforehand, put together by a parser."""

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


class Connection(asyncio.BufferedProtocol):
    """One connection: a request out, an answer in, and again.

    Nearly every answer tells its length in its head. Its body is then read into a buffer of that size, and copied
    nowhere.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._head = b""
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
            self._fail(f"what it says is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "it closed the connection")

    # -- an answer ----------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        """Take what comes before it is known how long the body is."""
        if self._waiting is None:
            self._fail("it says something that nobody asked for")
            return
        if self._chunked is not None:
            self._feed_chunked(self._chunked, data)
            return
        data = self._head + data
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
            self.is_open &= len(begun) == length  # what is beyond it belongs to nothing
            self._finish(begun[:length])
        else:
            self._body = bytearray(length)
            self._body[: len(begun)] = begun
            self._room = memoryview(self._body)[len(begun) :]

    def _read_head(self, head: bytes) -> int | None:
        """Note status and headers; the length of the body, None if the head does not tell."""
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
                raise ValueError(f"a header is not {field[:40]!r}")
            name, value = name.lower(), value.strip()
            self._headers.append((name, value))
            if name == b"content-length":
                if not value.isdigit() or length not in {None, int(value)}:
                    raise ValueError(f"{value[:40]!r} is no length")
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
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(Answer(self._status, self._headers, body))

    # -- asking -------------------------------------------------------------------------------------------------------

    async def ask(self, request: Sequence[bytes | bytearray]) -> Answer:
        assert self._waiting is None, "one request at a time"
        assert self._transport is not None, "a connection that was made"
        self._head, self._headers, self._chunked, self.has_heard = b"", [], None, False
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        self._transport.writelines(request)
        try:
            return await waiting
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def _fail(self, reason: str) -> None:
        self.close()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(ConnectionError(reason))


class Connections:
    """Connections to any number of nodes, a few kept for each."""

    def __init__(self) -> None:
        self._idle: dict[Address, list[Connection]] = {}

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def ask(
        self,
        address: Address,
        method: str,
        target: bytes,
        headers: HeaderList,
        body: Body,
        timeout_s: float,
        *,
        can_repeat: bool,
    ) -> Answer:
        """The answer of whoever is at ``address``.

        A kept connection that turns out to be dead is replaced once if the request ``can_repeat``. Raises
        `NotConnected` if nothing was asked, another `ConnectionError` if that is not known, `TimeoutError` if there is
        no answer in time.
        """
        lines = [b"%s %s HTTP/1.1\r\n" % (method.encode(), target)]
        lines += [b"%s: %s\r\n" % header for header in headers]
        parts = (body,) if isinstance(body, bytes | bytearray) else body
        lines.append(b"content-length: %d\r\n\r\n" % sum(map(len, parts)))
        request = (b"".join(lines), *parts)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(address, request, can_repeat=can_repeat)
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None

    async def _ask(self, address: Address, request: Sequence[bytes | bytearray], *, can_repeat: bool) -> Answer:
        kept = self._take(address)
        if kept is not None:
            try:
                return await self._use(address, kept, request)
            except ConnectionError:
                if not can_repeat or kept.has_heard:
                    raise
        return await self._use(address, await self._connect(address), request)

    async def _connect(self, address: Address) -> Connection:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                _, fresh = await asyncio.get_running_loop().create_connection(Connection, *address)
        except TimeoutError:
            raise NotConnected(f"no connection within {CONNECT_TIMEOUT_SECONDS:g} s") from None
        except OSError as error:
            raise NotConnected(error.strerror or str(error)) from error
        return fresh

    async def _use(self, address: Address, connection: Connection, request: Sequence[bytes | bytearray]) -> Answer:
        answer = await connection.ask(request)
        kept = self._idle.setdefault(address, [])
        if connection.is_open and len(kept) < _IDLE_MAX:
            connection.idle_since = asyncio.get_running_loop().time()
            kept.append(connection)
        else:
            connection.close()
        return answer

    def _take(self, address: Address) -> Connection | None:
        kept = self._idle.get(address, [])
        now = asyncio.get_running_loop().time()
        while kept:
            connection = kept.pop()
            if connection.is_open and now - connection.idle_since < _IDLE_SECONDS:
                return connection
            connection.close()
        return None
