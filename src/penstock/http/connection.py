"""One HTTP connection: uvicorn's protocol, with limits on what a client sends before its request begins.

The parser keeps an unfinished request line or header for as long as it takes, and however large it grows; here it does
not.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from penstock.http.config import HttpConfig

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(HttpToolsProtocol):
    """A connection that counts the bytes of a head not yet complete and remembers since when it waits."""

    limits: HttpConfig

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_bytes = 0
        self._head_since = self.loop.time()
        self._is_fresh = True

    def data_received(self, data: bytes) -> None:
        if not self._head_bytes:
            self._head_since = self.loop.time()
        self._is_fresh = False
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > self.limits.head_bytes_max:
            self._refuse(_TOO_LARGE)

    # Anything the parser makes of the bytes means that they are no unfinished head.

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def check_head(self, now: float) -> None:
        """Close the connection if it has been silent from the start, or its head is late."""
        if (self._head_bytes or self._is_fresh) and now - self._head_since > self.limits.head_timeout_ms / 1000:
            self._refuse(_TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(answer)
            self.transport.close()
