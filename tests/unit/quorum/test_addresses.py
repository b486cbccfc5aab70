"""Where nodes are reached: what they say of themselves always gets to the peers."""

from __future__ import annotations

import asyncio

from penstock.clock import SystemClock
from penstock.consensus.quorum.formation import Addresses
from penstock.consensus.quorum.wire import GREET, Greet
from penstock.network.tcp import TcpPeers


def test_a_node_that_was_removed_is_found_again_at_the_same_address() -> None:
    """The peers forget a removed node; without its address nobody would ever tell it what the quorum decides."""

    async def story() -> bool:
        here = TcpPeers(1, host="", port=None, token=None, clock=SystemClock())
        there = TcpPeers(4, host="127.0.0.1", port=0, token=None, clock=SystemClock())
        await there.start()
        assert there.port is not None
        addresses = Addresses(here, 1, ("127.0.0.1", 1))
        addresses.learn(4, ("127.0.0.1", there.port))
        here.forget(4)  # it was removed
        addresses.learn(4, ("127.0.0.1", there.port))  # and says hello again
        here.tell(4, GREET, Greet(node_id=1, directory_id="disk", address=None, first=()))
        for _ in range(6_000):
            if here.is_connected(4):
                break
            await asyncio.sleep(0.01)
        is_connected = here.is_connected(4)
        await here.stop()
        await there.stop()
        return is_connected

    assert asyncio.run(story())
