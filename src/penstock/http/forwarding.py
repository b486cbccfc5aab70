"""Requests handed on whole to the node that has to answer them, and answers gathered from several nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec
from starlette.types import Message, Receive, Scope

from penstock.errors import PeerNotReached, PeerUnavailable
from penstock.http.decoding import read_body
from penstock.http.door import Door
from penstock.http.exchange import Call, HeaderList, Reply
from penstock.http.homes import CLIENT, FORWARDED, Home
from penstock.http.upstream import Address, Answer
from penstock.http.waiting import Waiting

T = TypeVar("T")

_TIMEOUT_SECONDS: Final = 75.0  # longer than any call may wait by itself
_GATHER_TIMEOUT_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 4.0  # with a node that is gone: others need that long to notice and take over
_PAUSE_SECONDS: Final = 0.1
# What is between two neighbours only, and what is made anew.
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect", b"content-length"}
)
# What the node that a browser or a proxy called has judged; the next one is called by a node.
_JUDGED: Final = frozenset({b"host", b"origin", b"sec-fetch-site", b"x-forwarded-host"})
_OWN: Final = frozenset({b"date", b"server", b"content-type"})


async def hand_on(door: Door, home: Home, scope: Scope, receive: Receive, body_bytes_max: int) -> Reply | Receive:
    """The answer of the node that has to give it; if that is this one, what its handler is to read the request from.

    A node that cannot be connected to has done nothing; it may be about to be replaced, so whoever comes after it is
    asked, for a while.
    """
    broker = door.broker
    node_id = await home.find(door, scope)
    if node_id == broker.config.node_id:
        return receive
    body = await read_body(scope, receive, body_bytes_max)
    deadline = broker.clock.monotonic() + _PATIENCE_SECONDS
    while node_id != broker.config.node_id:
        try:
            return await _forward(door, node_id, scope, receive, body)
        except PeerNotReached:
            if broker.clock.monotonic() >= deadline:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)
        node_id = await home.find(door, scope)
    return _once_more(body, receive)


def _once_more(body: bytes | bytearray, receive: Receive) -> Receive:
    """A request whose body was read already, as if it had not been."""
    is_read = False

    async def receive_again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def _forward(door: Door, node_id: int, scope: Scope, receive: Receive, body: bytes | bytearray) -> Reply:
    call: Call[None, None] = Call(scope, receive, "", None, None)
    asking = _ask(door, node_id, scope, _method(scope), body, _TIMEOUT_SECONDS)
    async with Waiting(door, call, asking) as waiting:
        answer = await waiting.result()
    content_type = next((value for name, value in answer.headers if name == b"content-type"), b"")
    kept = [header for header in answer.headers if header[0] not in _HOP_BY_HOP | _OWN]
    return Reply(answer.status, bytes(answer.body), content_type.decode("latin-1"), kept)


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


async def _ask(
    door: Door, node_id: int, scope: Scope, method: str, body: bytes | bytearray, timeout_s: float
) -> Answer:
    address = _address(door, node_id)
    left_out = _HOP_BY_HOP | _JUDGED
    headers = [(b"host", _host(address))]
    headers += [header for header in scope["headers"] if header[0] not in left_out and header[0] != CLIENT]
    headers += _traces(door, scope)
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    return await door.upstreams.ask(address, method, target, headers, body, timeout_s)


def _traces(door: Door, scope: Scope) -> HeaderList:
    """What tells the other node that it is asked by one of us, and on whose behalf."""
    client = scope.get("client")
    traces = [(FORWARDED, str(door.broker.config.node_id).encode())]
    return [*traces, (CLIENT, client[0].encode())] if client else traces


def _host(address: Address) -> bytes:
    name, port = address
    return f"[{name}]:{port}".encode() if ":" in name else name.encode("idna") + f":{port}".encode()


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return "GET" if method == "HEAD" else method  # the server leaves out the body


def _address(door: Door, node_id: int) -> Address:
    node = door.broker.metadata.nodes.get(node_id)
    for endpoint in () if node is None else node.endpoints:
        if endpoint.door == "http":
            return endpoint.host, endpoint.port
    raise PeerNotReached(f"Node {node_id}, which has to answer this, is not known or has no HTTP door.")
