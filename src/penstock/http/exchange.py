"""One request and its reply, on top of ASGI and below every operation.

Bodies are read against a limit as they arrive, never after the fact. What a client may get wrong is raised as an
error that says where in its request the fault is.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

JSON: Final = "application/json"
HeaderList = list[tuple[bytes, bytes]]

Body = TypeVar("Body")
Query = TypeVar("Query")

_encoder: Final = msgspec.json.Encoder()


class Reply(NamedTuple):
    """An answer ready to be sent."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: HeaderList = []  # noqa: RUF012

    async def send(self, send: Send) -> None:
        headers = [
            (b"content-type", self.content_type.encode()),
            (b"content-length", str(len(self.body)).encode()),
            *self.headers,
        ]
        if self.status == 204:
            headers = self.headers
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def encode(answer: object, status: int = 200, headers: HeaderList | None = None) -> Reply:
    """An answer as JSON."""
    return Reply(status, _encoder.encode(answer), JSON, headers or [])


class Call(Generic[Body, Query]):
    """What an operation is called with: parts of the path, the query and the body, each checked."""

    __slots__ = ("body", "is_cut_off", "path", "query", "scope", "topic")

    def __init__(self, scope: Scope, topic: str, query: Query, body: Body, is_cut_off: ClientGone) -> None:
        self.scope = scope
        self.path: str = scope["path"]
        self.topic = topic
        self.query = query
        self.body = body
        self.is_cut_off = is_cut_off
