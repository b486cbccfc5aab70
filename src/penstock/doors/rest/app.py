"""The door's ASGI application: find the operation, check what it is given, run it, and answer whatever happens.

Routes go to `Resource` objects directly, without Starlette's request and middleware layers, because publishing is hot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from starlette.routing import BaseRoute, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.operation import Operation
from penstock.doors.rest.binder import Bound
from penstock.doors.rest.door import Door
from penstock.doors.rest.exchange import refuse_socket
from penstock.doors.rest.pages import Page, PageRunner
from penstock.doors.rest.problems import HostNotAllowed, MethodNotAllowed, NoSuchRoute, problem_reply
from penstock.doors.websocket.frames import WEBSOCKET_PATH
from penstock.errors import AuthenticationFailed
from penstock.operations.table import server_of


def build_app(door: Door, declared: Sequence[Operation], pages: Sequence[Page], socket: ASGIApp) -> ASGIApp:
    """The application that offers the operations of the table, pages, and a WebSocket."""
    by_path: dict[str, dict[str, Bound | PageRunner]] = {}
    for each in declared:
        for route in each.routes:
            by_path.setdefault(route.path, {})[route.method] = Bound(door, each, route, server_of(each.request))
    for page in pages:
        by_path.setdefault(page.path, {})["GET"] = PageRunner(door, page)
    routes: list[BaseRoute] = [Route(path, Resource(door, offered), name=path) for path, offered in by_path.items()]
    routes.append(WebSocketRoute(WEBSOCKET_PATH, socket))
    return _Gate(door, _Slashes(Router(routes, redirect_slashes=False, default=_Missing(door))))


class _Gate:
    """Lets in who calls this node by one of its names, and shows no wrong credentials, whatever is asked."""

    def __init__(self, door: Door, app: ASGIApp) -> None:
        self._door = door
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._door.hosts.check(scope)
            await self._door.login.admit(scope)
        except (HostNotAllowed, AuthenticationFailed) as error:
            answer = problem_reply(error, scope["path"])
            self._door.requests["", answer.status] += 1
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


class Resource:
    """Everything that can be done at one path."""

    def __init__(self, door: Door, runners: Mapping[str, Bound | PageRunner]) -> None:
        self._door = door
        self._runners = dict(runners)
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
