"""One request and its reply, on top of ASGI and below every operation."""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.http.connection import answer_whole

JSON: Final = "application/json"
MSGPACK: Final = "application/vnd.penstock+msgpack"
HeaderList = list[tuple[bytes, bytes]]

Body = TypeVar("Body")
Query = TypeVar("Query")

_OK: Final = 200
_NO_CONTENT: Final = 204
_encoder: Final = msgspec.json.Encoder()


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


def reply(answer: object, status: int = 200, headers: HeaderList | None = None) -> Reply:
    """An answer as JSON."""
    return Reply(status, _encoder.encode(answer), JSON, headers or [])


def no_content() -> Reply:
    return Reply(_NO_CONTENT, b"", "", [])


class Call(Generic[Body, Query]):
    """What an operation is called with: part of the path, the query and the body, each checked."""

    __slots__ = ("body", "path", "query", "receive", "scope", "topic")

    def __init__(self, scope: Scope, receive: Receive, topic: str, query: Query, body: Body) -> None:
        self.scope = scope
        self.receive = receive
        self.path: str = scope["path"]
        self.topic = topic
        self.query = query
        self.body = body

    async def wait_disconnected(self) -> None:
        """Return when the client has gone away. Only for calls whose body is read, or that have none."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    @property
    def client_host(self) -> str:
        """Where the client is, as far as is known; a node that hands a request on says for whom."""
        client = self.scope.get("client")
        said = self.header(b"penstock-client") if self.header(b"penstock-forwarded") else ""
        return said or (client[0] if client else "")

    @property
    def wants_binary(self) -> bool:
        """Whether the answer is asked for in MessagePack."""
        return MSGPACK in self.header(b"accept")

    def header(self, name: bytes) -> str:
        """A header of the request, or an empty string."""
        for found, value in self.scope["headers"]:
            if found == name:
                text: str = value.decode("latin-1")
                return text
        return ""
