"""Calls handed on to the node that has to answer them: whoever coordinates the group or the transaction at issue.

Every node takes every call, and hands on those that another node has to answer. A call that was handed on already is
answered where it is, or refused: so nothing goes round in circles while nodes disagree.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.broker import Broker
from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.upstreams import Address
from penstock.errors import PeerNotReached
from penstock.machines.addresses import CoordinatorAddress

FORWARDED: Final = "penstock-forwarded"  # by which node

_UNREACHED_SECONDS: Final = 4.0  # with a node that is gone: others need that long to notice and take over
_PAUSE_SECONDS: Final = 0.02
_TIMEOUT_SECONDS: Final = 75.0  # longer than any call may wait by itself


async def hand_on(door: Door, home: CoordinatorAddress, call: Call, method: str, data: bytes) -> bytes | None:
    """The answer of the node that has to give it, or None if that is this one.

    A node that cannot be connected to has done nothing; it may be about to be replaced, so whoever comes after it is
    asked, for a while.
    """
    broker = door.broker
    own_id = broker.config.node_id
    is_forwarded = call.header(FORWARDED) is not None
    if not is_forwarded:
        deadline = broker.clock.monotonic() + _UNREACHED_SECONDS
        node_id = await home.find(broker.ports)
        while node_id != own_id:
            timeout_s = call.seconds_left(_TIMEOUT_SECONDS)
            try:
                return await door.unless_stopping(
                    door.upstreams.ask(_address(broker, node_id), method, data, ((FORWARDED, str(own_id)),), timeout_s)
                )
            except PeerNotReached:
                if broker.clock.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
            node_id = await home.find(broker.ports)
    await home.settle(broker.ports, broker.coordinators, is_forwarded=is_forwarded)
    return None


def _address(broker: Broker, node_id: int) -> Address:
    node = broker.metadata.nodes.get(node_id)
    for endpoint in () if node is None else node.endpoints:
        if endpoint.door == "grpc":
            return endpoint.host, endpoint.port
    raise PeerNotReached(f"Node {node_id}, which has to answer this, is not known or has no gRPC door (broker.grpc).")
