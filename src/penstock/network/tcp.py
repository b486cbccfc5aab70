"""The other nodes over TCP.

Each node opens its own connections to the others and asks over them; what others ask comes over theirs. A node has two
ways to each other one, so that a body of many megabytes does not stand in front of a heartbeat. With
``security.tls.internal`` every connection is TLS, both ends show a certificate, and the token is the second lock.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from penstock.clock import Clock
from penstock.config.settings import TlsSettings
from penstock.errors import PeerNotReached, PeerUnavailable, PenstockError, StartupError
from penstock.network.certificates import Certificates
from penstock.network.channel import SCRATCH_BYTES, TlsChannel
from penstock.network.entrance import ChannelEntrance
from penstock.network.frames import CorruptFrame, Frame, FrameKind
from penstock.network.handshake import (
    NONCE_BYTES,
    WITHOUT_TLS,
    HandshakeServer,
    Introduction,
    NodeIdentity,
    Refused,
    Secure,
    connect,
)
from penstock.network.link import Link
from penstock.network.port import CALL_TIMEOUT_S, Handler, Method, Pieces, Received, RequestT
from penstock.network.route import PeerRoute
from penstock.network.service import Service
from penstock.network.sockets import Acceptor
from penstock.wrong_port import NO_PORTS, Ports

log = logging.getLogger(__name__)

_BACKLOG: Final = 256

Listener = Callable[[int], None]


class TcpPeers:
    """Implements `penstock.network.port.Peers` with sockets. Without a port it listens nowhere and can only ask."""

    def __init__(
        self,
        node_id: int,
        *,
        host: str,
        port: int | None,
        token: str | None,
        clock: Clock,
        ports: Ports = NO_PORTS,
        certificates: Certificates | None = None,
        tls: TlsSettings | None = None,
    ) -> None:
        self.node_id = node_id
        self._host = host
        self._port = port
        self._token = token
        self._clock = clock
        self._cluster_id = ""
        self._instance = os.urandom(NONCE_BYTES)
        self._service = Service(node_id)
        self._handshakes = HandshakeServer(self._identity, self._check_claim, self._on_admitted, ports)
        self._certificates = certificates if certificates is not None and certificates.has_links else None
        self._tls = tls or TlsSettings()
        self._scratch = memoryview(bytearray(SCRATCH_BYTES if self._certificates else 0))
        self._entrance: ChannelEntrance | None = None
        self._acceptor: Acceptor | None = None
        self._addresses: dict[int, tuple[str, int]] = {}
        self._routes: dict[tuple[int, bool], PeerRoute] = {}
        self._incoming: dict[Link, Introduction] = {}
        self._on_connected: list[Listener] = []
        self._on_lost: list[Listener] = []
        self._is_stopped = False

    # -- starting and stopping ----------------------------------------------------------------------------------------

    @property
    def port(self) -> int | None:
        """The port listened on, also if the system chose it."""
        return None if self._acceptor is None else self._acceptor.port

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @cluster_id.setter
    def cluster_id(self, cluster_id: str) -> None:
        """From now on connect only to nodes of this cluster, and drop connections to nodes of another."""
        self._cluster_id = cluster_id
        for link, introduction in tuple(self._incoming.items()):
            if introduction.cluster_id not in {"", cluster_id}:
                link.close("it belongs to another cluster")

    async def start(self) -> None:
        if self._port is None or self._acceptor is not None:
            return
        if self._certificates is not None:
            links = self._certificates
            self._entrance = ChannelEntrance(
                self._handshakes.guide,
                self._tls,
                lambda: links.links,
                self._handshakes.receive_secured,
                words_for_silent=WITHOUT_TLS,
            )
        self._acceptor = Acceptor(_listen(self._host, self._port), self._receive, whose="other nodes")
        if self._entrance is not None:
            self._entrance.hold(self._acceptor)
        self._acceptor.start()

    async def stop(self) -> None:
        """Listen and ask no more; what is being served is given up, and calls that wait fail."""
        self._is_stopped = True
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        if self._entrance is not None:
            self._entrance.close()
        for route in tuple(self._routes.values()):
            route.close()
        self._routes.clear()
        await self._service.stop()
        self._handshakes.close()
        for link in tuple(self._incoming):
            link.close_when_sent("this node stops")

    def _identity(self) -> NodeIdentity:
        return NodeIdentity(
            node_id=self.node_id, cluster_id=self._cluster_id, instance=self._instance, token=self._token
        )

    # -- asking -------------------------------------------------------------------------------------------------------

    def tell(self, node_id: int, method: Method[RequestT, Any], request: RequestT, body: Pieces = ()) -> None:
        if self._is_stopped:
            return
        try:
            if node_id == self.node_id:
                self._service.tell_here(method, request, body)
            else:
                self._route(node_id, is_bulk=method.is_bulk).tell(method, request, body)
        except PenstockError as error:
            log.debug("%s was not told to node %d: %s", method.name, node_id, error.message)

    async def call(
        self,
        node_id: int,
        method: Method[RequestT, Any],
        request: RequestT,
        body: Pieces = (),
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Received:
        if node_id == self.node_id:
            return await self._service.call_here(method, request, body, timeout_s)
        route = self._route(node_id, is_bulk=method.is_bulk)
        return await route.call(method, request, body, timeout_s=timeout_s)

    async def call_address(
        self,
        host: str,
        port: int,
        method: Method[RequestT, Any],
        request: RequestT,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Received:
        route = PeerRoute(f"the node at {host}:{port}", partial(self._connect_to, host, port), self._clock)
        try:
            return await route.call(method, request, (), timeout_s=timeout_s)
        finally:
            route.close()

    async def _connect_to(self, host: str, port: int) -> Link:
        return await connect(host, port, self._identity(), expected_id=None, is_bulk=False, secure=self._secure_with())

    async def _connect(self, node_id: int, is_bulk: bool) -> Link:
        address = self._addresses.get(node_id)
        if address is None:
            raise PeerUnavailable(f"Where node {node_id} is to be reached is not known.")
        return await connect(
            *address, self._identity(), expected_id=node_id, is_bulk=is_bulk, secure=self._secure_with()
        )

    def _secure_with(self) -> Secure | None:
        certificates = self._certificates
        if certificates is None:
            return None
        return lambda sock: TlsChannel(sock, certificates.asking, self._scratch, is_server=False)

    def _route(self, node_id: int, *, is_bulk: bool) -> PeerRoute:
        route = self._routes.get((node_id, is_bulk))
        if route is None:
            if node_id not in self._addresses:
                raise PeerNotReached(f"Where node {node_id} is to be reached is not known.")
            if self._is_stopped:
                raise PeerNotReached("This node is stopping.")
            name = f"node {node_id} (bulk)" if is_bulk else f"node {node_id}"
            route = PeerRoute(name, partial(self._connect, node_id, is_bulk), self._clock)
            if not is_bulk:
                route.on_up = partial(self._notify, self._on_connected, node_id)
                route.on_down = partial(self._notify, self._on_lost, node_id)
            else:
                route.problem_level = logging.DEBUG  # the other connection of the node has the same one
            self._routes[node_id, is_bulk] = route
        return route

    # -- knowing them -------------------------------------------------------------------------------------------------

    def introduce(self, node_id: int, host: str, port: int) -> None:
        if self._addresses.get(node_id) == (host, port):
            return
        moved = node_id in self._addresses
        self._addresses[node_id] = (host, port)
        if moved:
            self._close_routes(node_id)

    def forget(self, node_id: int) -> None:
        self._addresses.pop(node_id, None)
        self._close_routes(node_id)
        for link, introduction in tuple(self._incoming.items()):
            if introduction.node_id == node_id:
                link.close("the node is no longer one of the cluster")

    def _close_routes(self, node_id: int) -> None:
        for is_bulk in (False, True):
            route = self._routes.pop((node_id, is_bulk), None)
            if route is not None:
                route.close()

    def is_connected(self, node_id: int) -> bool:
        if node_id == self.node_id:
            return True
        route = self._routes.get((node_id, False))
        return route is not None and route.is_up

    def on_connected(self, listener: Listener) -> None:
        self._on_connected.append(listener)

    def on_lost(self, listener: Listener) -> None:
        self._on_lost.append(listener)

    def _notify(self, listeners: list[Listener], node_id: int) -> None:
        for listener in listeners:
            try:
                listener(node_id)
            except Exception:
                log.exception("A listener of connections met a bug.")

    # -- being asked --------------------------------------------------------------------------------------------------

    def serve(self, method: Method[Any, Any], handler: Handler) -> None:
        self._service.serve(method, handler)

    def _receive(self, sock: socket.socket) -> None:
        try:
            if self._entrance is None:
                self._handshakes.receive(sock)
            else:
                self._entrance.receive(sock)
        except OSError:  # it is gone again already
            sock.close()

    def _check_claim(self, newer: Introduction) -> None:
        """Refuse who claims the id of a node that is here: another process, while the one that has the id lives.

        A node that died leaves links that close or fall silent, and comes back by trying again.
        """
        for link, older in self._incoming.items():
            if older.node_id == newer.node_id and older.instance != newer.instance and link.is_alive:
                raise Refused(
                    f"Another node {newer.node_id} is connected: give this one another --node-id, or stop the other."
                )

    def _on_admitted(self, link: Link, introduction: Introduction) -> None:
        self._replace(introduction)
        self._incoming[link] = introduction
        link.on_closed = lambda reason: self._on_left(link, introduction, reason)
        link.on_frame = lambda frame: self._on_frame(link, introduction, frame)
        for is_bulk in (False, True):
            route = self._routes.get((introduction.node_id, is_bulk))
            if route is not None:
                route.hurry()

    def _replace(self, newer: Introduction) -> None:
        """Close what a node connected by before: nothing it sent there may come in after what it sends from now on."""
        if newer.is_visit:
            return
        for link, older in tuple(self._incoming.items()):
            if (older.node_id, older.is_bulk, older.is_visit) == (newer.node_id, newer.is_bulk, False):
                link.close("the node has connected anew")

    def _on_left(self, link: Link, introduction: Introduction, reason: str) -> None:
        self._incoming.pop(link, None)
        self._service.on_lost(link)
        log.debug("Node %d left: %s.", introduction.node_id, reason)

    def _on_frame(self, link: Link, introduction: Introduction, frame: Frame) -> None:
        caller, is_visit = introduction.node_id, introduction.is_visit
        if frame.kind == FrameKind.CALL:
            number, name = frame.number, frame.method

            def answer(kind: FrameKind, structure: msgspec.Struct, body: Pieces) -> None:
                link.send(kind, number, name, structure, body)
                link.hold_back()

            self._service.handle(caller, frame, link, answer, is_visit=is_visit)
        elif frame.kind == FrameKind.TELL:
            self._service.handle(caller, frame, link, is_visit=is_visit)
        else:
            raise CorruptFrame(f"A frame of kind {frame.kind} has no place here.")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise StartupError(
            f"Cannot listen for the other nodes on {host}:{port}: {error.strerror or error}. "
            "Stop whatever uses that port, or choose another with --internal HOST:PORT."
        ) from error
    sock.setblocking(False)  # noqa: FBT003
    return sock
