"""HTTP/1.1 connections to nodes: kept alive, a whole answer at a time.

Below the client and below the door, which hands requests on to other nodes. A connection that breaks before its answer
is there leaves unknown whether the node did what it was asked; where there is no connection at all, `NotConnected` says
that nothing was asked. Giving up on an answer closes its connection, so that the node sees its client go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple, cast

import httptools

Address = tuple[str, int]
HeaderList = list[tuple[bytes, bytes]]

CONNECT_TIMEOUT_SECONDS: Final = 2.0
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_IDLE_MAX: Final = 32  # connections kept for each node
_IDLE_SECONDS: Final = 30.0


class NotConnected(ConnectionError):
    """There is no connection, so nothing was asked."""


class Answer(NamedTuple):
    status: int
    headers: HeaderList
    body: bytes


class Connection(asyncio.Protocol):
    """One connection: a request out, an answer in, and again."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._headers: HeaderList = []
        self._parts: list[bytes] = []
        self._size = 0
        self._parser = httptools.HttpResponseParser(self)
        self.is_open = False
        self.has_heard = False  # anything of the answer under way
        self.idle_since = 0.0

    # -- the transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self.has_heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"what it says is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "it closed the connection")

    # -- the parser's calls -------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_body(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > _ANSWER_BYTES_MAX:
            self._fail(f"its answer is larger than {_ANSWER_BYTES_MAX} bytes")
            return
        self._parts.append(part)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            parts = self._parts
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            waiting.set_result(Answer(self._parser.get_status_code(), self._headers, body))

    # -- asking -------------------------------------------------------------------------------------------------------

    async def ask(self, request: Iterable[bytes]) -> Answer:
        assert self._waiting is None, "one request at a time"
        assert self._transport is not None, "a connection that was made"
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._parts, self._size, self.has_heard = [], [], 0, False
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
        body: bytes,
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
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        request = (b"".join(lines), body)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(address, request, can_repeat=can_repeat)
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None

    async def _ask(self, address: Address, request: Iterable[bytes], *, can_repeat: bool) -> Answer:
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

    async def _use(self, address: Address, connection: Connection, request: Iterable[bytes]) -> Answer:
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
