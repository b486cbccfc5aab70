"""What HTTP alone has, beside the operations of the table: metrics, the description, the status page, the WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.api import table
from penstock.doors.rest import status_page
from penstock.doors.rest.binder import HttpCaller
from penstock.doors.rest.description import PageDescription, describe
from penstock.doors.rest.door import Door
from penstock.doors.rest.exchange import JSON, Reply
from penstock.doors.rest.metrics import metrics
from penstock.doors.rest.problems import UpgradeRequired, problem_reply
from penstock.doors.websocket.frames import WEBSOCKET_PATH, SocketQuery
from penstock.operations.guard import check_looks

Handler = Callable[[Door, Scope], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Page:
    """Something to GET that is not JSON of the table. Its handler's docstring describes it."""

    handler: Handler
    described: PageDescription
    is_open: bool = True  # to callers that may not look at the cluster

    @property
    def path(self) -> str:
        return self.described.path

    @property
    def name(self) -> str:
        return self.described.name


class PageRunner:
    """Answers requests for a page."""

    def __init__(self, door: Door, page: Page) -> None:
        self._door = door
        self._page = page

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whatever happens."""
        try:
            if not self._page.is_open:
                check_looks(self._door.services, HttpCaller(self._door, scope, receive), self._page.name)
            answer = await self._page.handler(self._door, scope)
        except Exception as error:
            answer = problem_reply(error, scope["path"])
        self._door.requests[self._page.name, answer.status] += 1
        await answer.send(send)


async def openapi(_door: Door, _scope: Scope) -> Reply:
    """This description, after OpenAPI 3.1."""
    return Reply(200, _described(), JSON, [])


@cache
def _described() -> bytes:
    return msgspec.json.encode(describe(table.OPERATIONS, [page.described for page in PAGES]))


async def open_websocket(_door: Door, _scope: Scope) -> Reply:
    """Open a WebSocket: JSON frames to publish, subscribe with credits, ack and more; see the WebSocket reference."""
    raise UpgradeRequired(f"{WEBSOCKET_PATH} is a WebSocket; connect to it as one.")


def _page(path: str, handler: Handler, tag: str, media_type: str, *, is_open: bool = True, **more: object) -> Page:
    summary = " ".join((handler.__doc__ or "").split())
    described = PageDescription(path, handler.__name__, tag, summary, media_type, **more)  # type: ignore[arg-type]
    return Page(handler, described, is_open)


PAGES: Final = (
    _page(WEBSOCKET_PATH, open_websocket, "messages", JSON, status=101, errors=(400, 403, 426, 503), query=SocketQuery),
    _page("/metrics", metrics, "health", "text/plain", is_open=False),
    _page("/openapi.json", openapi, "description", JSON),
    _page("/", status_page.page, "description", "text/html"),
    _page("/static/{file}", status_page.asset, "description", "*/*", errors=(404,)),
)
