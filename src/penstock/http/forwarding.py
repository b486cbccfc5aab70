"""Requests handed on whole to the node that has to answer them, and answers gathered from several nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec
from starlette.types import Receive, Scope

from penstock.errors import PeerUnavailable
from penstock.http.decoding import read_body
from penstock.http.door import Door
from penstock.http.exchange import Call, HeaderList, Reply
from penstock.http.homes import CLIENT, FORWARDED
from penstock.http.upstream import Address, Answer
from penstock.http.waiting import Waiting

T = TypeVar("T")

_TIMEOUT_SECONDS: Final = 75.0  # longer than any call may wait by itself
_GATHER_TIMEOUT_SECONDS: Final = 5.0
# What is between two neighbours only, and what is made anew.
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect", b"content-length"}
)
_OWN: Final = frozenset({b"date", b"server", b"content-type"})


async def forward(door: Door, node_id: int, scope: Scope, receive: Receive) -> Reply:
    """The answer of another node to a request."""
    body = await read_body(scope, receive, door.config.body_bytes_max)
    call: Call[None, None] = Call(scope, receive, "", None, None)
    asking = _ask(door, node_id, scope, _method(scope), body, _TIMEOUT_SECONDS)
    async with Waiting(door, call, asking) as waiting:
        answer = await waiting.result()
    content_type = next((value for name, value in answer.headers if name == b"content-type"), b"")
    kept = [header for header in answer.headers if header[0] not in _HOP_BY_HOP | _OWN]
    return Reply(answer.status, answer.body, content_type.decode("latin-1"), kept)


async def gather(door: Door, call: Call[Any, Any], node_ids: Iterable[int], kind: type[T]) -> list[T]:
    """What each of these nodes answers to the same question for itself; `PeerUnavailable` if one does not."""
    asked = list(node_ids)
    answers = await asyncio.gather(
        *(_ask(door, node_id, call.scope, "GET", b"", _GATHER_TIMEOUT_SECONDS) for node_id in asked)
    )
    for node_id, answer in zip(asked, answers, strict=True):
        if answer.status != 200:
            raise PeerUnavailable(f"Node {node_id} cannot answer now (status {answer.status}). Try again in a moment.")
    return [msgspec.json.decode(answer.body, type=kind) for answer in answers]


async def _ask(door: Door, node_id: int, scope: Scope, method: str, body: bytes, timeout_s: float) -> Answer:
    headers = [header for header in scope["headers"] if header[0] not in _HOP_BY_HOP and header[0] != CLIENT]
    headers += _traces(door, scope)
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    return await door.upstreams.ask(_address(door, node_id), method, target, headers, body, timeout_s)


def _traces(door: Door, scope: Scope) -> HeaderList:
    """What tells the other node that it is asked by one of us, and on whose behalf."""
    client = scope.get("client")
    traces = [(FORWARDED, str(door.broker.config.node_id).encode())]
    return [*traces, (CLIENT, client[0].encode())] if client else traces


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return "GET" if method == "HEAD" else method  # the server leaves out the body


def _address(door: Door, node_id: int) -> Address:
    node = door.broker.metadata.nodes.get(node_id)
    for endpoint in () if node is None else node.endpoints:
        if endpoint.door == "http":
            return endpoint.host, endpoint.port
    raise PeerUnavailable(f"Node {node_id}, which has to answer this, is not known or has no HTTP door.")
