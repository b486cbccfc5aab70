"""Calls to a cluster: any node will do; when one does not answer, the next is asked.

Nearly every call can be repeated without harm: reads, acks, heartbeats and commits by nature, publishes because batches
are numbered. Such a call is tried until it is answered, refused for good, or out of time. A call that would do its work
again, as its operation's row says, is repeated only if the node cannot have done it. Errors come back as problem
documents (RFC 9457) and are raised as the classes of `penstock.errors`.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from penstock.api.operation import Packed, Request
from penstock.client.calls import ERRORS_FROM, Body, Pieces, RestCall, answer_of, call_of, error_of
from penstock.client.connections import (
    ConnectionPool,
    HostAndPort,
    HttpAnswer,
    HttpConnection,
    NotConnected,
    OtherDoor,
    request_of,
)
from penstock.client.login import Login
from penstock.client.trust import Trust
from penstock.errors import ClientClosed, InvalidRequest, NodesUnreachable, PenstockError, QuotaExceeded, WrongPort

BASE_SECONDS: Final = 0.05
CAP_SECONDS: Final = 2.0

_CHANCE: Final = random.Random()  # shared: seeding one takes longer than many a call


class Backoff:
    """Pauses that double up to a cap. Each is drawn from its upper half, so that clients do not come back together."""

    def __init__(
        self, base_s: float = BASE_SECONDS, cap_s: float = CAP_SECONDS, chance: random.Random | None = None
    ) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._chance = chance or _CHANCE
        self._tries = 0

    def next(self) -> float:
        """Seconds to wait before the next try."""
        pause_s = min(self._cap_s, self._base_s * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return pause_s * self._chance.uniform(0.5, 1.0)

    def reset(self) -> None:
        """After a success: the next failure counts as the first."""
        self._tries = 0


DEFAULT_URL: Final = "http://127.0.0.1:8080"

_ATTEMPT_SECONDS: Final = 30.0  # for one node to answer, beside what it was asked to wait
# The same where another node can be asked: longer than a node tries to reach a leader, and a node that stands still
# with its connections open does not take the whole of a call's time.
_ATTEMPT_OF_SEVERAL_SECONDS: Final = 10.0
_NOT_FOUND: Final = 404
_PORTS: Final = {"http": 80, "https": 443}

A = TypeVar("A")


class _Node(NamedTuple):
    url: str
    address: HostAndPort
    host: bytes
    prefix: str
    is_tls: bool


class Transport:
    """Calls to a cluster through one URL or several."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        """``tls`` decides which certificates to trust at https:// URLs; default: see `Trust`."""
        if timeout_s <= 0:
            raise InvalidRequest(f"timeout must be a number of seconds above 0; got {timeout_s!r}.")
        self._nodes = [_node_at(url) for url in urls or (DEFAULT_URL,)]
        self._login = Login.of() if login is None else login
        for node in self._nodes:
            self._login.check_address(node.address[0], is_tls=node.is_tls)
        self._at = 0
        self._connections = ConnectionPool()
        if tls is None and any(node.is_tls for node in self._nodes):
            tls = Trust.of().context()
        self._secured = ConnectionPool(tls)
        self._is_closed = False
        self.timeout_s = timeout_s

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self._nodes]

    def close(self) -> None:
        self._is_closed = True
        self._connections.close()
        self._secured.close()

    async def call(self, request: Request[A | Packed], *, can_repeat: bool | None = None) -> A:
        """Perform an operation. ``can_repeat`` is for callers who know better than its row."""
        call = call_of(request)
        answer = await self.send(call if can_repeat is None else call._replace(can_repeat=can_repeat))
        return answer_of(request, answer.status, answer.body)

    async def call_packed(self, request: Request[Any], *, again: Request[Any] | None = None) -> HttpAnswer:
        """Perform an operation and have its answer in MessagePack. ``again`` is what to send after the first try."""
        return await self.send(call_of(request, is_packed=True), again=again)

    async def send(self, call: RestCall, *, again: Request[Any] | None = None, is_once: bool = False) -> HttpAnswer:
        """An answer that is not an error.

        ``again`` is what to send after the first try. With ``is_once`` the caller retries by itself.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_s + call.wait_s
        backoff, failures, tries, body = Backoff(), dict[str, str](), 0, call.body
        can_repeat = call.can_repeat and not is_once
        while True:
            if self._is_closed:
                raise ClientClosed()
            node = self._nodes[self._at % len(self._nodes)]
            answer_s = self._attempt_s(call) + call.wait_s
            try:
                answer = await self._pool(node).send(
                    node.address, self._request(node, call, body), answer_s, can_repeat=can_repeat
                )
                if answer.status < ERRORS_FROM or answer.status in call.answers:
                    return answer
                error = error_of(answer.status, answer.body)
                if not error.retriable or answer.status == _NOT_FOUND:
                    raise error
            except OtherDoor as door:
                raise WrongPort(f"{node.url} is {door}. Give the node's HTTP address, port 8080 by default.") from None
            except OSError as problem:
                failures[node.url] = problem.strerror or str(problem) or type(problem).__name__
                error = _unreachable(failures, self.timeout_s)
                if not call.can_repeat and not isinstance(problem, NotConnected):
                    self._leave(node)
                    raise _unknown(node.url, failures[node.url]) from None
            body = body if again is None else call_of(again).body
            if isinstance(error, QuotaExceeded):  # the node is well, and says how long to wait
                pause_s = error.retry_after_ms / 1000
            else:
                self._leave(node)
                tries += 1
                pause_s = 0.0 if tries % len(self._nodes) else backoff.next()
            if is_once or loop.time() + pause_s >= deadline:
                raise error
            await asyncio.sleep(pause_s)

    def begin(self, call: RestCall, done: Callable[[HttpAnswer | PenstockError], None]) -> HttpConnection | None:
        """Send once, if a connection is free; ``done`` is called with an answer that is not an error, or with an error.

        Returns the connection, which can be closed to give up, or None if nothing was sent. Does the same as `send`
        with ``is_once``, but without a task: most publishes are sent this way.
        """
        if self._is_closed:
            return None
        node = self._nodes[self._at % len(self._nodes)]
        pool = self._pool(node)
        connection = pool.take(node.address)
        if connection is None:
            return None
        timeout_s = self._attempt_s(call)
        timer = asyncio.get_running_loop().call_later(timeout_s, connection.expire, timeout_s)

        def on_outcome(outcome: HttpAnswer | OSError) -> None:
            timer.cancel()
            if isinstance(outcome, OSError):
                self._leave(node)
                reason = outcome.strerror or str(outcome) or type(outcome).__name__
                done(_unreachable({node.url: reason}, self.timeout_s))
                return
            pool.keep(node.address, connection)
            if outcome.status < ERRORS_FROM:
                done(outcome)
                return
            error = error_of(outcome.status, outcome.body)
            if error.retriable and outcome.status != _NOT_FOUND and not isinstance(error, QuotaExceeded):
                self._leave(node)
            done(error)

        connection.start(self._request(node, call, call.body), on_outcome)
        return connection

    def _request(self, node: _Node, call: RestCall, body: Body) -> Pieces:
        headers, credentials = call.headers, self._login.header()
        if credentials is not None:
            headers = (*headers, (b"authorization", credentials))
        return request_of(_head(node, call.method, call.target, call.accept, call.content_type, *headers), body)

    def _attempt_s(self, call: RestCall) -> float:
        has_others = call.can_repeat and len(self._nodes) > 1
        return min(_ATTEMPT_OF_SEVERAL_SECONDS if has_others else _ATTEMPT_SECONDS, self.timeout_s)

    def _pool(self, node: _Node) -> ConnectionPool:
        return self._secured if node.is_tls else self._connections

    def _leave(self, node: _Node) -> None:
        """Ask another node next, unless another call has moved on already."""
        if self._nodes[self._at % len(self._nodes)] is node:
            self._at = (self._at + 1) % len(self._nodes)


@lru_cache(1024)
def _head(
    node: _Node, method: str, target: str, accept: bytes, content_type: bytes | None, *headers: tuple[bytes, bytes]
) -> bytes:
    """The head of a request up to the content-length. It is the same each time, so the node's cache knows it."""
    lines = [f"{method} {node.prefix}{target} HTTP/1.1\r\n".encode()]
    given = [(b"host", node.host), (b"accept", accept), *headers]
    if content_type is not None:
        given.append((b"content-type", content_type))
    return b"".join([*lines, *(b"%b: %b\r\n" % header for header in given)])


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


def _unknown(url: str, reason: str) -> PenstockError:
    return NodesUnreachable(
        f"{url} did not answer ({reason}). It may have done what it was asked to; check before you ask again."
    )
