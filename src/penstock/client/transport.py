"""Calls to a cluster: any of its nodes will do, and when one does not answer the next is asked.

Every call that the client makes can be repeated without harm: reads, acks, heartbeats and commits by nature, publishes
because batches are numbered. So a call is tried until it is answered, refused for good, or its time is up.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.client.backoff import Backoff
from penstock.client.connections import (
    Address,
    Answer,
    Body,
    Connection,
    Connections,
    HeaderList,
    SpeaksGrpc,
    request_of,
)
from penstock.client.problems import error_of
from penstock.errors import ClientClosed, InvalidRequest, NodesUnreachable, PenstockError, UnexpectedAnswer, WrongPort

DEFAULT_URL: Final = "http://127.0.0.1:8080"
JSON: Final = b"application/json"
MSGPACK: Final = b"application/vnd.penstock+msgpack"

_ATTEMPT_SECONDS: Final = 30.0  # for one node to answer, beside what it was asked to wait
_NOT_FOUND: Final = 404
_PORTS: Final = {"http": 80, "https": 443}

T = TypeVar("T")


class _Node(NamedTuple):
    url: str
    address: Address
    host: bytes
    prefix: str
    is_tls: bool


class Transport:
    """The way to a cluster, by one URL or several."""

    def __init__(self, urls: Sequence[str], *, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        """``tls`` is how nodes at https:// addresses are trusted; default: as the system trusts web sites."""
        if timeout_s <= 0:
            raise InvalidRequest(f"A timeout is a number of seconds above 0, not {timeout_s!r}.")
        self._nodes = [_node_at(url) for url in urls or (DEFAULT_URL,)]
        self._at = 0
        self._connections = Connections()
        if tls is None and any(node.is_tls for node in self._nodes):
            tls = ssl.create_default_context()
        self._secured = Connections(tls)
        self._is_closed = False
        self.timeout_s = timeout_s

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self._nodes]

    def close(self) -> None:
        self._is_closed = True
        self._connections.close()
        self._secured.close()

    async def get(self, kind: type[T], *path: str, wait_s: float = 0.0, **query: object) -> T:
        """Ask for something that JSON tells of."""
        known = {name: value for name, value in query.items() if value is not None}
        answer = await self.call("GET", path, query=urlencode(known), wait_s=wait_s)
        return decoded(answer.body, kind)

    async def post(
        self, kind: type[T], *path: str, body: object, wait_s: float = 0.0, headers: HeaderList | None = None
    ) -> T:
        """Ask for something to be done, in JSON both ways."""
        payload = msgspec.json.encode(body)
        answer = await self.call("POST", path, body=payload, wait_s=wait_s, headers=headers)
        return decoded(answer.body or b"null", kind)

    async def call(
        self,
        method: str,
        path: Sequence[str],
        *,
        query: str = "",
        body: Body = b"",
        body_again: Body | None = None,
        content_type: bytes = JSON,
        accept: bytes = JSON,
        headers: HeaderList | None = None,
        wait_s: float = 0.0,
        patience_s: float | None = None,
        is_once: bool = False,
    ) -> Answer:
        """An answer that is no error. ``wait_s`` is what the node was asked to wait, ``patience_s`` for how long
        to try; default: the client's timeout. ``body_again`` is what to say after the first try, where that makes a
        difference. ``is_once``: whoever calls sees to other tries.
        """
        loop = asyncio.get_running_loop()
        patience_s = self.timeout_s if patience_s is None else patience_s
        deadline = loop.time() + patience_s + wait_s
        target = _target(tuple(path)) + (f"?{query}" if query else "")
        kind = None if method == "GET" else content_type
        backoff, failures, tries = Backoff(), dict[str, str](), 0
        while True:
            if self._is_closed:
                raise ClientClosed()
            node = self._nodes[self._at % len(self._nodes)]
            answer_s = min(_ATTEMPT_SECONDS, patience_s) + wait_s
            request = request_of(_head(node, method, target, accept, kind, *(headers or ())), body)
            try:
                answer = await self._pool(node).send(node.address, request, answer_s, can_repeat=not is_once)
                if answer.status < 400:
                    return answer
                error = error_of(answer)
                if not error.retriable or answer.status == _NOT_FOUND:
                    raise error
            except SpeaksGrpc:
                raise WrongPort(
                    f"{node.url} is a gRPC port. Give the node's HTTP address, port 8080 by default."
                ) from None
            except OSError as problem:
                failures[node.url] = problem.strerror or str(problem) or type(problem).__name__
                error = _unreachable(failures, patience_s)
            self._leave(node)
            body = body if body_again is None else body_again
            tries += 1
            pause_s = 0.0 if tries % len(self._nodes) else backoff.next()
            if is_once or loop.time() + pause_s >= deadline:
                raise error
            await asyncio.sleep(pause_s)

    def begin(
        self,
        path: Sequence[str],
        body: Body,
        *,
        content_type: bytes,
        accept: bytes,
        done: Callable[[Answer | PenstockError], None],
    ) -> Connection | None:
        """Post something once, if there is a connection for it; ``done`` is called with an answer that is no error, or
        with what went wrong. Returns the connection, which can be closed to give up, or None if nothing was asked.

        The same as `call` with ``is_once``, but without anything that would have to wait: a publish is mostly this.
        """
        if self._is_closed:
            return None
        node = self._nodes[self._at % len(self._nodes)]
        pool = self._pool(node)
        connection = pool.take(node.address)
        if connection is None:
            return None
        timeout_s = min(_ATTEMPT_SECONDS, self.timeout_s)
        timer = asyncio.get_running_loop().call_later(timeout_s, connection.expire, timeout_s)

        def on_outcome(outcome: Answer | OSError) -> None:
            timer.cancel()
            if isinstance(outcome, OSError):
                self._leave(node)
                reason = outcome.strerror or str(outcome) or type(outcome).__name__
                done(_unreachable({node.url: reason}, self.timeout_s))
                return
            pool.keep(node.address, connection)
            if outcome.status < 400:
                done(outcome)
                return
            error = error_of(outcome)
            if error.retriable and outcome.status != _NOT_FOUND:
                self._leave(node)
            done(error)

        head = _head(node, "POST", _target(tuple(path)), accept, content_type)
        connection.start(request_of(head, body), on_outcome)
        return connection

    def _pool(self, node: _Node) -> Connections:
        return self._secured if node.is_tls else self._connections

    def _leave(self, node: _Node) -> None:
        """Ask another one next, unless somebody has moved on already."""
        if self._nodes[self._at % len(self._nodes)] is node:
            self._at = (self._at + 1) % len(self._nodes)


@lru_cache(1024)
def _target(path: tuple[str, ...]) -> str:
    return "/".join(["", *(quote(part, safe="") for part in path)])


@lru_cache(1024)
def _head(
    node: _Node, method: str, target: str, accept: bytes, content_type: bytes | None, *headers: tuple[bytes, bytes]
) -> bytes:
    """All of a request that comes before the length of its body. It is the same each time, so the node knows it."""
    lines = [f"{method} {node.prefix}{target} HTTP/1.1\r\n".encode()]
    given = [(b"host", node.host), (b"accept", accept), *headers]
    if content_type is not None:
        given.append((b"content-type", content_type))
    return b"".join([*lines, *(b"%b: %b\r\n" % header for header in given)])


# A decoder for each kind of answer: to make one takes longer than to use it.


@lru_cache(256)
def _json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@lru_cache(256)
def _pack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def decoded(body: bytes | bytearray, kind: type[T]) -> T:
    """What a JSON answer holds."""
    try:
        told: T = _json_decoder(cast("Any", kind)).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnexpectedAnswer(f"The answer is not what a Penstock node says: {error}") from None
    return told


def unpacked(body: bytes | bytearray, kind: Any) -> Any:
    """What a MessagePack answer holds."""
    try:
        return _pack_decoder(kind).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnexpectedAnswer(f"The answer is not what a Penstock node says: {error}") from None


def _node_at(url: str) -> _Node:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment:
        raise InvalidRequest(f"{url!r} is not the URL of a node; give one such as {DEFAULT_URL}.")
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise InvalidRequest(f"{url!r} has a port that is not a number from 0 to 65535.") from None
    host = parts.netloc.rpartition("@")[2].encode("idna")
    return _Node(url, (parts.hostname, port), host, parts.path.rstrip("/"), parts.scheme == "https")


def _unreachable(failures: dict[str, str], patience_s: float) -> PenstockError:
    tried = "; ".join(f"{url}: {reason}" for url, reason in failures.items())
    return NodesUnreachable(
        f"No node could be reached within {patience_s:g} s ({tried}). Check that one is running and the URLs are right."
    )
