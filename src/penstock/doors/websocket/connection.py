"""One WebSocket connection: uvicorn's protocol, with limits on what frames may cost.

A message may come in pieces, and a piece may be empty, so its size bounds neither the memory nor the work that its
frames take. Here their number is bounded too; what arrived is taken in small parts, with turns for everybody else
between them; and nothing more is taken while the client's messages, or our answers to it, wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from penstock.doors.secured import tls_extension

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent

FRAGMENTS_MAX: Final = 1_000  # of one message
_PART_BYTES: Final = 4 * 1024  # some hundred of the smallest frames, which take about a millisecond


class WebSocketConnection(WebSocketsSansIOProtocol):
    """A connection that takes what it received part by part."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._unread = memoryview(b"")
        self._is_due = False  # a turn of the loop will go on with what is unread

    def data_received(self, data: bytes) -> None:
        self._unread = memoryview(bytes(self._unread) + data if self._unread else data)
        if not self._is_due:
            self._take_part()

    def _take_part(self) -> None:
        self._is_due = False
        if self.disconnected or self.transport.is_closing():
            self._unread = memoryview(b"")
            return
        if not self._may_take:
            return
        part, self._unread = self._unread[:_PART_BYTES], self._unread[_PART_BYTES:]
        super().data_received(bytes(part))
        if self._unread:
            self.transport.pause_reading()
            self._go_on()

    @property
    def _may_take(self) -> bool:
        return not self.read_paused and self.writable.is_set()

    def _go_on(self) -> None:
        """Take the rest in a later turn of the loop, or read again if there is none."""
        if self._is_due or not self._may_take or self.disconnected:
            return
        if self._unread:
            self._is_due = True
            self.loop.call_soon(self._take_rest)
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def _take_rest(self) -> None:
        self._take_part()
        if not self._unread:
            self._go_on()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        extension = tls_extension(self.transport)
        if extension is not None and (extensions := getattr(self, "scope", {}).get("extensions")) is not None:
            extensions["tls"] = extension

    async def receive(self) -> ASGIReceiveEvent:
        """The next message; room for more is made when the last one is taken."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._go_on()
        return message

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= FRAGMENTS_MAX and not event.fin:
            self.frames = []
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"a message comes in {FRAGMENTS_MAX} frames at most")
            self.handle_parser_exception()
            return
        super().handle_cont(event)
