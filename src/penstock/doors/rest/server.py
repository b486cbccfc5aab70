"""The HTTP door's server: uvicorn inside the node's own event loop.

The node keeps its signals, its logging and its life cycle; uvicorn gets bound sockets and an application.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Iterator
from typing import Final, cast

import uvicorn.config
import uvicorn.server
from starlette.types import ASGIApp

from penstock.api.table import OPERATIONS
from penstock.doors.rest.app import build_app
from penstock.doors.rest.config import HttpConfig
from penstock.doors.rest.connection import Bodies, Connection
from penstock.doors.rest.door import Door
from penstock.doors.rest.pages import PAGES
from penstock.doors.rest.tls import TlsEntrance, TlsListener
from penstock.doors.websocket.connection import WebSocketConnection
from penstock.doors.websocket.endpoint import WebSocketEndpoint
from penstock.errors import StartupError
from penstock.network.certificates import Certificates
from penstock.operations.services import Services
from penstock.wrong_port import Guide, Protocol

log = logging.getLogger(__name__)

__all__ = ["HttpConfig", "HttpServer"]

_BACKLOG: Final = 2_048
_TICK_SECONDS: Final = 1.0
# Beyond the time requests have to finish: what uvicorn itself needs to close.
_STOP_MARGIN_SECONDS: Final = 1.0


class HttpServer:
    """The door itself: `start` binds and serves, `stop` lets requests under way finish for a while."""

    def __init__(self, services: Services, config: HttpConfig, certificates: Certificates | None = None) -> None:
        self._config = config
        self._certificates = certificates
        self._door = Door(services, config)
        self._socket = WebSocketEndpoint(self._door)
        self._sockets: list[socket.socket] = []
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that clients reach, also where the system chose it."""
        if not self._sockets:
            return self._config.port
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen, and return when requests are answered; `StartupError` if the address cannot be had."""
        self._sockets = await _bind(self._config)
        self._door.broker.replicas.listen(self._door.leaderships)
        app = build_app(self._door, OPERATIONS, PAGES, self._socket)
        self._server = _Server(app, self._config, self._certificates)
        self._serving = asyncio.create_task(self._server.serve(self._sockets), name="penstock-http")
        self._door.broker.supervision.watch("HTTP door", self._serving)
        started = asyncio.create_task(self._server.has_started.wait())
        await asyncio.wait({self._serving, started}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._serving.done():
            self._serving.result()
            raise StartupError("The HTTP door closed as soon as it was opened.")

    async def stop(self) -> None:
        """Take no more requests, finish those under way, and cut off what is left when the time is over."""
        if self._serving is None or self._server is None:
            return
        self._door.stopping.set()
        self._server.ask_to_stop()
        try:
            async with asyncio.timeout(self._config.node.grace_ms / 1000 + _STOP_MARGIN_SECONDS):
                await asyncio.shield(self._serving)
        except TimeoutError:
            log.warning("Some HTTP requests did not finish in time and are cut off.")
        finally:
            self._server.abort()
            await self._socket.sessions.stop()
            self._door.services.hosted.stop()
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
            self._serving = None


class _Server(uvicorn.server.Server):
    """uvicorn's server as a guest: it leaves signals alone and stops when its host says so."""

    def __init__(self, app: ASGIApp, config: HttpConfig, certificates: Certificates | None = None) -> None:
        self._tls = config.tls
        self._certificates = certificates
        self._guide = Guide("the HTTP port", Protocol.HTTP, config.ports)
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        super().__init__(
            uvicorn.config.Config(
                app,
                http=type(
                    "BoundConnection",
                    (Connection,),
                    {
                        "limits": config,
                        "bodies": Bodies(config.bodies_bytes_max),
                        "guide": self._guide,
                    },
                ),
                ws=WebSocketConnection,
                ws_max_size=config.node.max_body_bytes,
                ws_ping_interval=config.node.websocket_ping_ms / 1000,
                ws_ping_timeout=config.node.websocket_ping_ms / 1000,
                ws_per_message_deflate=False,  # what is small on the wire must not be large in memory
                loop="none",
                interface="asgi3",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=config.connections_max,
                backlog=_BACKLOG,
                timeout_keep_alive=max(config.node.idle_timeout_ms // 1000, 1),
                timeout_graceful_shutdown=max(config.node.grace_ms // 1000, 1),
            )
        )
        self.has_started = asyncio.Event()
        self._wake = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve the sockets; with TLS by an entrance of ours, which has limits that uvicorn's way has not."""
        if self._certificates is None or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        entrance = TlsEntrance(self._guide, self._tls, self._certificates.doors, self._make_connection)
        self.servers = [cast("asyncio.base_events.Server", TlsListener(sock, entrance)) for sock in sockets]

    def _make_connection(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def main_loop(self) -> None:
        """Once a second, refresh the date and look for clients that hold a connection without asking for anything."""
        await self.on_tick(0)
        self.has_started.set()
        loop = asyncio.get_running_loop()
        while not self.should_exit:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _TICK_SECONDS)
            await self.on_tick(0)
            now = loop.time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.sweep(now)

    def ask_to_stop(self) -> None:
        self.should_exit = True
        self._wake.set()

    def abort(self) -> None:
        """Cut every connection that is still there."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


async def _bind(config: HttpConfig) -> list[socket.socket]:
    """A listening socket for each address that the host stands for, all on one port."""
    where = f"{config.host}:{config.port}"
    host = None if config.host in {"", "*"} else config.host
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise StartupError(f"The HTTP door cannot listen on {where}: {error.strerror}. Check --http.") from error
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        port = sockets[0].getsockname()[1] if sockets else config.port
        listener = socket.socket(family, kind, protocol)
        try:
            _listen(listener, (address[0], port, *address[2:]))
        except OSError as error:
            listener.close()
            # "localhost" may stand for an address this machine does not have; one that works is enough.
            if error.errno != errno.EADDRNOTAVAIL or len(found) == 1:
                failure = error
                break
            continue
        sockets.append(listener)
    if failure is not None or not sockets:
        for listener in sockets:
            listener.close()
        raise _cannot_listen(where, config.port, failure) from failure
    return sockets


def _listen(listener: socket.socket, address: tuple[object, ...]) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(address)
    listener.listen(_BACKLOG)
    listener.setblocking(False)  # noqa: FBT003


def _cannot_listen(where: str, port: int, failure: OSError | None) -> StartupError:
    reason = "no address" if failure is None else failure.strerror
    if failure is not None and failure.errno == errno.EADDRINUSE:
        return StartupError(
            f"The HTTP door cannot listen on {where}: port {port} is in use. Stop the process that has it, or choose "
            "another with --http HOST:PORT."
        )
    return StartupError(f"The HTTP door cannot listen on {where}: {reason}. Choose another with --http HOST:PORT.")
