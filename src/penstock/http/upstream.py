"""HTTP to other nodes: the client's connections, with the errors that one node has for another.

A connection that breaks before its answer is there leaves unknown whether the other node did what it was asked: that is
`PeerUnavailable`; where there is no connection at all it is `PeerNotReached`.
"""

from __future__ import annotations

from penstock.client.connections import Address, Answer, Connections, NotConnected
from penstock.errors import PeerNotReached, PeerUnavailable
from penstock.http.exchange import HeaderList

__all__ = ["Address", "Answer", "Upstreams"]


class Upstreams:
    """Connections to other nodes' HTTP doors."""

    def __init__(self) -> None:
        self._connections = Connections()

    def close(self) -> None:
        self._connections.close()

    async def ask(
        self,
        address: Address,
        method: str,
        target: bytes,
        headers: HeaderList,
        body: bytes | bytearray,
        timeout_s: float,
    ) -> Answer:
        """The answer of whoever is at ``address``; `PeerUnavailable` if there is none in time, `PeerNotReached` if
        nothing was asked. Only what changes nothing is asked again where a kept connection turns out to be dead.
        """
        try:
            return await self._connections.ask(
                address, method, target, headers, body, timeout_s, can_repeat=method == "GET"
            )
        except NotConnected as error:
            raise PeerNotReached(_message(address, str(error))) from error
        except OSError as error:
            raise PeerUnavailable(_message(address, error.strerror or str(error))) from error


def _message(address: Address, reason: str) -> str:
    return f"The node at {address[0]}:{address[1]}, which has to answer this, cannot be reached: {reason}."
