"""One HTTP connection: uvicorn's protocol, with limits on what a client may send and how long it may take.

The parser keeps an unfinished request line or header for as long as it takes, however large it grows, and a body is
waited for without end; here they are not. Clocks are looked at by a sweep of all connections, so that a request costs
no timer. Requests that are like one before skip the parser (`shortcut`), and large bodies are put together as they
come, instead of being handed on piece by piece. What a head claims of its body takes no memory: only bytes that have
arrived do, and all connections together hold no more of them than the settings allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock.doors.rest.config import HttpConfig
from penstock.doors.rest.shortcut import Heads, Known
from penstock.doors.secured import tls_extension
from penstock.wrong_port import Guide


def _answer(status: bytes, code: bytes, detail: bytes) -> bytes:
    body = (
        b'{"type":"urn:penstock:error:%s","title":"%s","status":%s,"detail":"%s","instance":"","code":"%s",'
        b'"retriable":false}' % (code, status[4:], status[:3], detail, code)
    )
    return (
        b"HTTP/1.1 %s\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
        % (status, len(body), body)
    )


_HEAD_TOO_LARGE: Final = _answer(
    b"431 Request Header Fields Too Large", b"head_too_large", b"The request line and headers are too large."
)
_TOO_SLOW: Final = _answer(b"408 Request Timeout", b"request_too_slow", b"The request did not arrive in time.")
_NO_ROOM: Final = _answer(
    b"503 Service Unavailable",
    b"too_many_bodies",
    b"This node holds as many bytes of unfinished requests as it takes. Try again in a moment.",
).replace(b'"retriable":false', b'"retriable":true ')
# Where a request's scope holds a body that its connection puts together; it is whole when the body ends.
LARGE_BODY: Final = "penstock.large_body"
_LARGE_BYTES: Final = 256 * 1024  # more than ever comes in one piece
_LENGTH_DIGITS_MAX: Final = 12
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


class Bodies:
    """The bytes of bodies whose requests are not answered yet, on all connections of a door."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0


class Connection(HttpToolsProtocol):
    """A connection that counts the bytes of a head not yet complete and remembers since when it waits for more."""

    limits: HttpConfig
    bodies: Bodies
    guide: Guide

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_bytes = 0
        self._waits_since = self.loop.time()
        self._has_asked = False
        self._begun = 0  # requests that the parser has seen the first byte of
        self._ended = 0  # and the last
        self._heads = Heads()
        self._tls: dict[str, Any] | None = None  # what is known of the client by its certificate
        self._large: bytearray | None = None  # a large body that is arriving
        self._held_bytes = 0  # of bodies

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._tls = tls_extension(transport)

    def data_received(self, data: bytes) -> None:
        if not self._has_asked and self._turns_away(data):
            return
        is_idle = self._is_idle
        if not self._head_bytes and is_idle:
            self._waits_since = self.loop.time()
            if self._begun == self._ended:
                known = self._heads.find(data)
                if known is not None and self._can_take(known):
                    self._has_asked = True
                    self._serve(known)
                    return
        self._has_asked = True
        is_new = not self._head_bytes and is_idle and self._begun == self._ended
        begun = self._begun
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > self.limits.head_bytes_max:
            self._refuse(_HEAD_TOO_LARGE)
        elif is_new and self._ended == begun + 1 == self._begun and self.cycle is not None:
            self._heads.learn(data, self.cycle.scope)

    def _turns_away(self, data: bytes) -> bool:
        """Whether a new client speaks something else than HTTP; it is told where to go, and the connection closed."""
        client, here = self.client or ("?", 0), self.server or ("", None)
        answer = self.guide.answer(data, client=f"{client[0]}:{client[1]}", host=here[0])
        if answer is None:
            return False
        self.transport.write(answer)
        self.transport.close()
        return True

    def _can_take(self, known: Known) -> bool:
        most = self.limits.connections_max
        if len(self.connections) >= most or len(self.tasks) >= most or self.transport.is_closing():
            return False
        return len(known.body) <= self.limits.node.max_body_bytes

    def _serve(self, known: Known) -> None:
        """Have a request answered that is there as a whole."""
        cycle = self.cycle = RequestResponseCycle(
            scope=known.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )
        cycle.more_body = False
        self._start_asgi_task(cycle, partial(known.serves, known.body))

    def on_message_begin(self) -> None:
        self._begun += 1
        super().on_message_begin()
        if self._tls is not None:
            self.scope["extensions"] = {"tls": cast("dict[object, object]", self._tls)}

    def on_response_complete(self) -> None:
        """Let the next request have its turn; a connection that stays idle is found by the sweep."""
        self.server_state.total_requests += 1
        if self._held_bytes and not self.pipeline:
            self._let_go()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._waits_since = self.loop.time()

    # Whatever the parser makes of the bytes means that they are no unfinished head.

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self._large = None
        super().on_headers_complete()
        length = _length_told(self.headers)
        if _LARGE_BYTES < length <= self.limits.node.max_body_bytes and self.scope["method"] in _WITH_BODY:
            self._large = bytearray()
            cast("dict[str, Any]", self.scope)[LARGE_BODY] = self._large

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if self.cycle is None or self.cycle.response_complete:
            return  # of a request that was refused before it was whole
        self._held_bytes += len(body)
        self.bodies.held_bytes += len(body)
        if self.bodies.held_bytes > self.bodies.bytes_max:
            self._refuse(_NO_ROOM)
        elif self._large is None:
            super().on_body(body)
        else:
            self._large += body

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._ended += 1
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()
        super().connection_lost(exc)

    def _let_go(self) -> None:
        self.bodies.held_bytes -= self._held_bytes
        self._held_bytes = 0
        self._large = None

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being worked on."""
        return self.cycle is None or self.cycle.response_complete

    def sweep(self, now: float) -> None:
        """Close the connection if what it owes us is late: a first request, the rest of a head, or of a body; or if
        nothing was asked on it for long.
        """
        waited_ms = (now - self._waits_since) * 1000
        if self._is_idle:
            is_late = (self._head_bytes > 0 or not self._has_asked) and waited_ms > self.limits.head_timeout_ms
            if not is_late and waited_ms > self.limits.node.idle_timeout_ms and not self._head_bytes:
                self.transport.close()
        else:
            is_late = self.cycle.more_body and waited_ms > self.limits.body_timeout_ms
        if is_late:
            self._refuse(_TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_idle or not self.cycle.response_started:
            self.transport.write(answer)
        self.transport.close()


def _length_told(headers: Sequence[tuple[bytes, bytes]]) -> int:
    """How long a body is, if its head tells; the parser has found that to be right."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and len(value) <= _LENGTH_DIGITS_MAX:
            return int(value)
    return 0


def answer_whole(send: object, status: int, content_type: bytes, body: Sequence[bytes]) -> bool:
    """Answer in one write, if ``send`` is uvicorn's and has nothing against it; otherwise nothing was done.

    By the usual way head and body are written one after the other: a system call more here, and a client that is
    woken twice.
    """
    cycle = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or cycle.response_started or cycle.flow.write_paused:
        return False
    if cycle.disconnected or not cycle.keep_alive or cycle.scope["method"] == "HEAD":
        return False
    head = [STATUS_LINE[status]]
    for name, value in cycle.default_headers:
        head += (name, b": ", value, b"\r\n")
    head.append(b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (content_type, sum(map(len, body))))
    cycle.transport.writelines((b"".join(head), *body))
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.expected_content_length = 0
    cycle.message_event.set()
    cycle.on_response()
    return True
