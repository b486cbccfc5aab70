"""HTTP over TLS: connections wait at an entrance until they begin TLS, then the event loop's own TLS takes them.

uvicorn would hand the listening socket to the loop, which limits neither the handshakes in progress nor tells a client
without TLS what is wrong. Here accepting is ours, as at the Kafka door; behind it everything is as without TLS.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from penstock.config.settings import TlsSettings
from penstock.network.entrance import Arrival, Entrance, explain
from penstock.network.sockets import Acceptor
from penstock.wrong_port import Guide

_SHUTDOWN_TIMEOUT_S: Final = 5.0  # for the other end to say that it has read all


class TlsEntrance(Entrance):
    """Gives connections to the loop, which shakes hands; they have a place here until that is over."""

    def __init__(
        self,
        guide: Guide,
        settings: TlsSettings,
        context: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        super().__init__(guide, settings)
        self._context = context
        self._make_protocol = make_protocol

    def begin(self, arrival: Arrival) -> None:
        task = self._loop.create_task(self._secure(arrival), name="penstock-https")
        arrival.abort = task.cancel

    async def _secure(self, arrival: Arrival) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                arrival.sock,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout_s,
                ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
            )
        except OSError as error:
            self.fail(arrival, explain(error))
        finally:
            self.leave(arrival)


class TlsListener:
    """A listening socket, with as much of a server as uvicorn asks of one."""

    def __init__(self, sock: socket.socket, entrance: TlsEntrance) -> None:
        self._entrance = entrance
        self._acceptor = Acceptor(sock, self._take, whose="HTTP clients")
        entrance.hold(self._acceptor)
        self._acceptor.start()

    def _take(self, sock: socket.socket) -> None:
        try:
            self._entrance.receive(sock)
        except OSError:  # the client is gone again already
            sock.close()

    def close(self) -> None:
        self._acceptor.close()
        self._entrance.close()

    async def wait_closed(self) -> None:
        """Connections are waited for elsewhere."""
