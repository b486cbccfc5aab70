"""One request and its reply, on top of ASGI and below every operation."""

from __future__ import annotations

from typing import Final, NamedTuple

from starlette.types import Receive, Scope, Send

from penstock.doors.rest.connection import answer_whole

JSON: Final = "application/json"
MSGPACK: Final = "application/vnd.penstock+msgpack"
HeaderList = list[tuple[bytes, bytes]]

_OK: Final = 200
_NO_CONTENT: Final = 204


class Reply(NamedTuple):
    """An answer ready to be sent."""

    status: int
    body: bytes
    content_type: str
    headers: HeaderList
    more: tuple[bytes, ...] = ()  # of the body, where it is in pieces too large to be copied together

    async def send(self, send: Send) -> None:
        headers = self.headers
        body = (self.body, *self.more)
        if not headers and self.status == _OK and answer_whole(send, _OK, self.content_type.encode(), body):
            return
        if self.status != _NO_CONTENT:
            headers = [
                (b"content-type", self.content_type.encode()),
                (b"content-length", str(sum(map(len, body))).encode()),
                *headers,
            ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"".join(body)})


async def refuse_socket(answer: Reply, receive: Receive, send: Send) -> None:
    """Answer a wish to open a WebSocket with an HTTP response instead."""
    await receive()
    headers = [(b"content-type", answer.content_type.encode()), *answer.headers]
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": answer.body})
    await receive()
    await receive()  # that of the connection itself; who returns before is taken for having forgotten to answer


def no_content() -> Reply:
    return Reply(_NO_CONTENT, b"", "", [])


def header_of(scope: Scope, name: bytes) -> str:
    """A header of a request, or an empty string."""
    for found, value in scope["headers"]:
        if found == name:
            text: str = value.decode("latin-1")
            return text
    return ""
