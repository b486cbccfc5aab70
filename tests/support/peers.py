"""Nodes that reach each other within one process, for tests: no sockets, but every byte is encoded and read again.

A `PeerExchange` is the network. Messages are delivered in a later turn of the loop, in the order in which they were
sent. Links can be cut, and then what is on its way is lost, as with a cable that is pulled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from penstock.errors import PeerNotReached, PeerUnavailable
from penstock.network.frames import Failure, Frame, FrameKind, decode_structure, encode_head, joined, parse_frame
from penstock.network.port import ABANDON, CALL_TIMEOUT_S, Abandoned, Handler, Method, Pieces, Received, RequestT
from penstock.network.service import Service

Listener = Callable[[int], None]


class PeerExchange:
    """The network between the nodes of a test. All nodes on it know each other."""

    def __init__(self) -> None:
        self.nodes: dict[int, MemoryPeers] = {}
        self.addresses: dict[tuple[str, int], MemoryPeers] = {}
        self._cut: dict[tuple[int, int], None] = {}
        self.delivered = 0

    def join(self, node_id: int, *, host: str = "memory", port: int | None = None) -> MemoryPeers:
        """Put a node on the network, in the place of an earlier one with the same id."""
        earlier = self.nodes.get(node_id)
        if earlier is not None:
            self.leave(earlier)
        peers = MemoryPeers(self, node_id)
        self.nodes[node_id] = peers
        self.addresses[host, node_id if port is None else port] = peers
        return peers

    def leave(self, peers: MemoryPeers) -> None:
        """Take a node off the network; the others notice at once."""
        if self.nodes.get(peers.node_id) is peers:
            del self.nodes[peers.node_id]
        self.addresses = {address: node for address, node in self.addresses.items() if node is not peers}
        for other in tuple(self.nodes.values()):
            other.lose(peers.node_id, "the node left")

    def cut(self, source: int, target: int, *, is_one_way: bool = False, is_noticed: bool = True) -> None:
        """Let nothing through any more. Where it is not noticed, calls wait until they time out."""
        self._cut[source, target] = None
        if not is_one_way:
            self._cut[target, source] = None
        if is_noticed:
            for one, other in ((source, target), (target, source)):
                if one in self.nodes:
                    self.nodes[one].lose(other, "the link was cut")

    def heal(self, source: int | None = None, target: int | None = None) -> None:
        """Mend one link in both directions, or all."""
        if source is None or target is None:
            self._cut.clear()
            return
        self._cut.pop((source, target), None)
        self._cut.pop((target, source), None)

    def is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self._cut

    def carry(self, source: int, target: MemoryPeers, deliver: Callable[[Frame], None], frame: bytes) -> None:
        """Bring a frame to a node, unless the way is cut or the node gone by then."""
        asyncio.get_running_loop().call_soon(self._arrive, source, target, deliver, frame)

    def _arrive(self, source: int, target: MemoryPeers, deliver: Callable[[Frame], None], frame: bytes) -> None:
        if not self.is_cut(source, target.node_id) and self.nodes.get(target.node_id) is target:
            self.delivered += 1
            deliver(parse_frame(memoryview(frame)))


class MemoryPeers:
    """One node's view of the exchange. Implements `penstock.network.port.Peers`."""

    def __init__(self, exchange: PeerExchange, node_id: int) -> None:
        self.node_id = node_id
        self.cluster_id = ""
        self._exchange = exchange
        self._service = Service(node_id)
        self._introduced: dict[int, tuple[str, int]] = {}
        self._forgotten: dict[int, None] = {}
        self._connected: dict[int, MemoryPeers] = {}
        self._number = 0
        self._calls: dict[int, tuple[int, asyncio.Future[Received], type[msgspec.Struct]]] = {}
        self._on_connected: list[Listener] = []
        self._on_lost: list[Listener] = []

    async def start(self) -> None:
        """Be there; an exchange has no doors to open."""

    async def stop(self) -> None:
        self._exchange.leave(self)
        for node_id in tuple(self._connected):
            self.lose(node_id, "this node stops")
        await self._service.stop()

    def serve(self, method: Method[Any, Any], handler: Handler) -> None:
        self._service.serve(method, handler)

    def tell(self, node_id: int, method: Method[RequestT, Any], request: RequestT, body: Pieces = ()) -> None:
        if node_id == self.node_id:
            self._service.tell_here(method, request, body)
            return
        if node_id not in self._connected:
            asyncio.get_running_loop().call_soon(self._connect, node_id)
            return
        target = self._connected[node_id]
        frame = _encode(FrameKind.TELL, 0, method.name, request, body)
        self._exchange.carry(self.node_id, target, partial(target.hear, self), frame)

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
        self._connect(node_id)
        target = self._connected.get(node_id)
        if target is None:
            raise PeerNotReached(f"Node {node_id} cannot be reached.")
        return await self._ask(target, method, request, body, timeout_s)

    async def call_address(
        self,
        host: str,
        port: int,
        method: Method[RequestT, Any],
        request: RequestT,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Received:
        target = self._exchange.addresses.get((host, port))
        if target is None:
            raise PeerUnavailable(f"No node listens at {host}:{port}.")
        if target is self:
            return await self._service.call_here(method, request, (), timeout_s)
        if self._is_cut_off(target.node_id):
            raise PeerUnavailable(f"The node at {host}:{port} cannot be reached.")
        return await self._ask(target, method, request, (), timeout_s)

    async def _ask(
        self, target: MemoryPeers, method: Method[Any, Any], request: msgspec.Struct, body: Pieces, timeout_s: float
    ) -> Received:
        self._number += 1
        number = self._number
        future: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        self._calls[number] = (target.node_id, future, method.reply)
        frame = _encode(FrameKind.CALL, number, method.name, request, body)
        self._exchange.carry(self.node_id, target, partial(target.hear, self), frame)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise PeerUnavailable(
                f"Node {target.node_id} did not answer {method.name} within {timeout_s:g} s."
            ) from error
        finally:
            if self._calls.pop(number, None) is not None and method.ends_with_caller:
                told = _encode(FrameKind.TELL, 0, ABANDON.name, Abandoned(number), ())
                self._exchange.carry(self.node_id, target, partial(target.hear, self), told)

    def hear(self, asker: MemoryPeers, frame: Frame) -> None:
        """A frame of another node arrives."""
        if frame.kind == FrameKind.TELL:
            self._service.handle(asker.node_id, frame, asker.node_id)
            return

        def answer(kind: FrameKind, structure: msgspec.Struct, body: Pieces) -> None:
            data = _encode(kind, frame.number, frame.method, structure, body)
            self._exchange.carry(self.node_id, asker, asker.learn, data)

        self._service.handle(asker.node_id, frame, asker.node_id, answer)

    def learn(self, frame: Frame) -> None:
        """The answer to a call arrives."""
        call = self._calls.pop(frame.number, None)
        if call is None or call[1].done():
            return
        _, future, reply = call
        if frame.kind == FrameKind.REPLY:
            future.set_result(Received(decode_structure(reply, frame.structure), frame.body))
        else:
            failure: Failure = decode_structure(Failure, frame.structure)
            future.set_exception(failure.revived())

    def introduce(self, node_id: int, host: str, port: int) -> None:
        self._forgotten.pop(node_id, None)
        self._introduced[node_id] = (host, port)

    def forget(self, node_id: int) -> None:
        self._introduced.pop(node_id, None)
        self._forgotten[node_id] = None
        self.lose(node_id, "the node is no longer one of the cluster")

    def is_connected(self, node_id: int) -> bool:
        return node_id == self.node_id or node_id in self._connected

    def on_connected(self, listener: Listener) -> None:
        self._on_connected.append(listener)

    def on_lost(self, listener: Listener) -> None:
        self._on_lost.append(listener)

    def lose(self, node_id: int, reason: str) -> None:
        """The connection to a node breaks, and with it every call that waits for it."""
        self._service.on_lost(node_id)
        if self._connected.pop(node_id, None) is None:
            return
        for target, future, _ in tuple(self._calls.values()):
            if target == node_id and not future.done():
                future.set_exception(PeerUnavailable(f"The connection to node {node_id} broke: {reason}."))
        for listener in self._on_lost:
            listener(node_id)

    def _connect(self, node_id: int) -> None:
        target = self._exchange.nodes.get(node_id)
        if node_id in self._connected or target is None or self._is_cut_off(node_id) or node_id in self._forgotten:
            return
        if self._exchange.nodes.get(self.node_id) is not self:
            return  # this node has left
        self._connected[node_id] = target
        for listener in self._on_connected:
            listener(node_id)

    def _is_cut_off(self, node_id: int) -> bool:
        # A handshake needs both directions.
        return self._exchange.is_cut(self.node_id, node_id) or self._exchange.is_cut(node_id, self.node_id)


def _encode(kind: FrameKind, number: int, method: str, structure: msgspec.Struct, body: Pieces) -> bytes:
    told = joined(body)
    return encode_head(kind, number, method, structure, len(told)) + told
