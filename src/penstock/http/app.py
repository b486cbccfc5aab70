"""The door's ASGI application: find the operation, check what it is given, run it, and answer whatever happens.

Routes go to `Resource` objects directly, without Starlette's request and middleware layers, because publishing is hot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import NodeStarting
from penstock.http.decoding import decode_body, decode_query, read_body, refuse_foreign_page
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, reply
from penstock.http.forwarding import hand_on
from penstock.http.homes import is_forwarded
from penstock.http.operation import Operation
from penstock.http.problems import HostNotAllowed, MethodNotAllowed, NoSuchRoute, problem_reply
from penstock.http.shortcut import SERVES_AGAIN
from penstock.http.websocket import WebSocketEndpoint, refuse_socket
from penstock.http.websocket_subscriptions import WEBSOCKET_PATH

# What can be asked of a node before it is one of its cluster.
_EARLY_TAGS: Final = frozenset({"health", "description", "admin", "cluster"})
# What says what is to be done rather than carrying messages needs no large body.
_SMALL_TAGS: Final = frozenset({"health", "description", "admin", "cluster", "topics", "groups", "pipelines"})
_SMALL_BODY_BYTES_MAX: Final = 1024 * 1024


def build_app(door: Door, operations: Sequence[Operation]) -> ASGIApp:
    """The application that offers ``operations``."""
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, []).append(operation)
    routes: list[BaseRoute] = [Route(path, Resource(door, offered), name=path) for path, offered in by_path.items()]
    routes.append(WebSocketRoute(WEBSOCKET_PATH, WebSocketEndpoint(door)))
    return _Gate(door, _Slashes(Router(routes, redirect_slashes=False, default=_Missing(door))))


class _Gate:
    """Lets in who calls this node by one of its names, whatever is asked."""

    def __init__(self, door: Door, app: ASGIApp) -> None:
        self._door = door
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._door.hosts.check(scope)
        except HostNotAllowed as error:
            self._door.requests["", error.status] += 1
            answer = problem_reply(error, scope["path"])
            await (answer.send(send) if scope["type"] == "http" else refuse_socket(answer, receive, send))
            return
        await self._app(scope, receive, send)


class _Slashes:
    """Lets names have slashes in them: `a%2Fb` is one part of a path, though it reads `a/b` once it is decoded.

    Routes are found on decoded paths. Where a slash is encoded they are found on the path as it was sent instead, and
    the names in it are decoded after that.
    """

    def __init__(self, router: ASGIApp) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _has_encoded_slash(scope):
            scope["path"] = scope["raw_path"].decode("ascii")
        await self._router(scope, receive, send)


def _has_encoded_slash(scope: Scope) -> bool:
    raw = scope.get("raw_path", b"")
    return b"%2F" in raw or b"%2f" in raw


class Runner:
    """An operation with everything looked up that a call of it needs."""

    __slots__ = (
        "_body_bytes_max",
        "_decoder",
        "_door",
        "_is_early",
        "_is_raw",
        "_is_safe",
        "_query",
        "_without_body",
        "operation",
    )

    def __init__(self, door: Door, operation: Operation) -> None:
        self._door = door
        self.operation = operation
        body, self._query = operation.takes
        self._is_raw = body is bytearray  # the handler makes of it what it will
        is_json = body is not None and not self._is_raw
        self._decoder: msgspec.json.Decoder[Any] | None = msgspec.json.Decoder(body) if is_json else None
        self._without_body = b"{}" if operation.is_body_optional else b""
        self._is_safe = operation.method == "GET"
        self._is_early = operation.tag in _EARLY_TAGS
        most = door.config.body_bytes_max
        self._body_bytes_max = min(most, _SMALL_BODY_BYTES_MAX) if operation.tag in _SMALL_TAGS else most

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whatever happens."""
        try:
            answer = await self._run(scope, receive)
        except Exception as error:
            answer = problem_reply(error, scope["path"])
        self._door.requests[self.operation.name, answer.status] += 1
        await answer.send(send)

    async def serve_again(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose head is that of one which `serve` found good, and whose body is there."""
        try:
            self._check_started()
            answer = await self._handle(scope, receive, None, body)
        except Exception as error:
            answer = problem_reply(error, scope["path"])
        self._door.requests[self.operation.name, answer.status] += 1
        await answer.send(send)

    async def _run(self, scope: Scope, receive: Receive) -> Reply:
        door = self._door
        self._check_started()
        if not self._is_safe:
            refuse_foreign_page(scope, door.hosts)
        home = self.operation.home
        if self._query is None and not self._is_safe and (home is None or home.is_anywhere(scope)):
            scope[SERVES_AGAIN] = self.serve_again  # the head is good, and the next one may differ in its body alone
        elif home is not None:
            if not is_forwarded(scope):
                outcome = await hand_on(door, home, scope, receive, self._body_bytes_max)
                if isinstance(outcome, Reply):
                    return outcome
                receive = outcome
            await home.settle(door, scope)
        query = None if self._query is None else decode_query(self._query, scope)
        data: bytes | bytearray = b""
        if self._is_raw or self._decoder is not None:
            data = await read_body(scope, receive, self._body_bytes_max)
        return await self._handle(scope, receive, query, data)

    def _check_started(self) -> None:
        if not self._is_early and not self._door.broker.is_started:
            raise NodeStarting("This node is starting and does not know its topics yet. Try again in a moment.")

    async def _handle(self, scope: Scope, receive: Receive, query: object, data: bytes | bytearray) -> Reply:
        body: object = None
        if self._is_raw:
            body = data if isinstance(data, bytearray) else bytearray(data)
        elif self._decoder is not None:
            body = decode_body(self._decoder, data or self._without_body)
        topic = scope["path_params"].get("topic", "")
        answer = await self.operation.handler(self._door, Call(scope, receive, topic, query, body))
        return answer if type(answer) is Reply else reply(answer, self.operation.status)


class Resource:
    """Everything that can be done at one path."""

    def __init__(self, door: Door, operations: Sequence[Operation]) -> None:
        self._door = door
        self._runners = {operation.method: Runner(door, operation) for operation in operations}
        if "GET" in self._runners:
            self._runners["HEAD"] = self._runners["GET"]  # the server leaves out the body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        runner = self._runners.get(scope["method"])
        if _has_encoded_slash(scope):
            scope["path_params"] = {name: unquote(text) for name, text in scope["path_params"].items()}
        if runner is not None:
            await runner.serve(scope, receive, send)
            return
        error = MethodNotAllowed(
            f"{scope['path']} does not take {scope['method']}. Use {' or '.join(self._runners)}.", list(self._runners)
        )
        answer = problem_reply(error, scope["path"])
        self._door.requests["", answer.status] += 1
        await answer.send(send)


class _Missing:
    """What answers where no route leads."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._door.requests["", NoSuchRoute.status] += 1
        error = NoSuchRoute(f"There is nothing at {scope['path']}. /openapi.json lists what there is.")
        answer = problem_reply(error, scope["path"])
        await (answer.send(send) if scope["type"] == "http" else refuse_socket(answer, receive, send))
