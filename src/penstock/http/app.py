"""The door's ASGI application: find the operation, check what it is given, run it, and answer whatever happens.

Routes go to `Resource` objects directly, without Starlette's request and middleware layers, because publishing is hot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.http.decoding import decode_body, decode_query, read_body, refuse_foreign_page
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, reply
from penstock.http.operation import Operation
from penstock.http.problems import MethodNotAllowed, NoSuchRoute, problem_reply


def build_app(door: Door, operations: Sequence[Operation]) -> ASGIApp:
    """The application that offers ``operations``."""
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, []).append(operation)
    routes = [Route(path, Resource(door, offered), name=path) for path, offered in by_path.items()]
    return Router(routes, redirect_slashes=False, default=_Missing(door))


class Runner:
    """An operation with everything looked up that a call of it needs."""

    __slots__ = ("_decoder", "_door", "_is_safe", "_query", "operation")

    def __init__(self, door: Door, operation: Operation) -> None:
        self._door = door
        self.operation = operation
        body, self._query = operation.takes
        self._decoder: msgspec.json.Decoder[Any] | None = None if body is None else msgspec.json.Decoder(body)
        self._is_safe = operation.method == "GET"

    async def run(self, scope: Scope, receive: Receive) -> Reply:
        door = self._door
        if not self._is_safe:
            refuse_foreign_page(scope)
        query = None if self._query is None else decode_query(self._query, scope)
        body = None
        if self._decoder is not None:
            body = decode_body(self._decoder, await read_body(scope, receive, door.config.body_bytes_max))
        topic = scope["path_params"].get("topic", "")
        answer = await self.operation.handler(door, Call(scope, receive, topic, query, body))
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
        try:
            if runner is None:
                raise MethodNotAllowed(
                    f"{scope['path']} does not take {scope['method']}. Use {' or '.join(self._runners)}.",
                    list(self._runners),
                )
            answer = await runner.run(scope, receive)
        except Exception as error:
            answer = problem_reply(error, scope["path"])
        self._door.requests["" if runner is None else runner.operation.name, answer.status] += 1
        await answer.send(send)


class _Missing:
    """What answers where no route leads."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        if scope["type"] != "http":
            return
        self._door.requests["", NoSuchRoute.status] += 1
        error = NoSuchRoute(f"There is nothing at {scope['path']}. /openapi.json lists what there is.")
        await problem_reply(error, scope["path"]).send(send)
