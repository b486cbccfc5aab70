"""The other nodes over a simulated network: the real peers, with links of the simulation in place of sockets.

Frames, the greeting, routes with their retries, handlers and errors are the ones that nodes use; only the opening of
connections is done here.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from penstock.clock import Clock
from penstock.errors import PeerUnavailable
from penstock.network.handshake import NONCE_BYTES
from penstock.network.link import Link
from penstock.network.tcp import TcpPeers
from penstock.testing.loop import Life
from sim.cluster.network import Address, SimulatedNetwork

_CONNECT_TIMEOUT_S: Final = 2.0


class SimulatedPeers(TcpPeers):
    """The other nodes, as one simulated process reaches them."""

    def __init__(
        self,
        network: SimulatedNetwork,
        life: Life,
        node_id: int,
        address: Address,
        clock: Clock,
        token: str | None = None,
    ) -> None:
        super().__init__(node_id, host=address[0], port=None, token=token, clock=clock)
        self._network = network
        self.life = life
        self.address = address
        self.is_gone = False

    async def start(self) -> None:
        self._network.listen(self)

    async def stop(self) -> None:
        """The process ends in good order."""
        await super().stop()
        self._network.leave(self, is_silent=False)

    async def _connect(self, node_id: int, is_bulk: bool) -> Link:
        address = self._addresses.get(node_id)
        if address is None:
            raise PeerUnavailable(f"Where node {node_id} is to be reached is not known.")
        return await self._open(address, expected_id=node_id, is_bulk=is_bulk)

    async def _connect_to(self, host: str, port: int) -> Link:
        return await self._open((host, port), expected_id=None, is_bulk=False)

    async def _open(self, address: Address, *, expected_id: int | None, is_bulk: bool) -> Link:
        network = self._network
        await asyncio.sleep(network.delay())
        far = network.listening(address)
        if far is None and self._is_way_open(expected_id):
            raise PeerUnavailable(f"Cannot connect to {address[0]}: connection refused.")
        if far is None or not self._is_way_open(far.node_id):
            await asyncio.sleep(_CONNECT_TIMEOUT_S)
            raise PeerUnavailable(f"Cannot connect to {address[0]}: no answer within {_CONNECT_TIMEOUT_S:g} s.")
        assert isinstance(far, SimulatedPeers)
        nonce = bytes(NONCE_BYTES)
        challenge = far._identity().challenge(nonce)
        introduction = self._identity().introduce(challenge, nonce, expected_id=expected_id, is_bulk=is_bulk)
        welcome = far._identity().welcome(challenge, introduction)
        self._identity().accept(challenge, introduction, welcome)
        here, there = network.connect(self, far)
        far.life.run(far._on_admitted, cast(Any, there), introduction)
        await asyncio.sleep(network.delay())
        if here.is_closed:
            raise PeerUnavailable(f"Cannot connect to {address[0]}: the other end closed it.")
        return cast(Link, here)

    def _is_way_open(self, node_id: int | None) -> bool:
        if node_id is None:
            return True
        return self._network.is_open(self.node_id, node_id) and self._network.is_open(node_id, self.node_id)
