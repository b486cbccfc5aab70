"""The port to the other nodes: how the rest of the code sends them messages.

A `Method` has a name, a request and a reply, each a msgspec structure, and either may have raw bytes behind it: records
travel there as they are stored, uncopied and unparsed. There are two ways to reach a node: `tell` sends and forgets,
`call` waits for the reply. Both may lose what they are given; nothing is ever delivered twice by one connection or out
of order on it. A `PenstockError` raised by the node that serves a method is raised again by `call`; where the node
cannot be reached, or the connection breaks before the reply, `PeerUnavailable` is, and whether the node did it is not
known.

The port is a protocol so that a simulated network can take the place of sockets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from penstock.errors import PolicyViolation
from penstock.storage.files import FileSlice

RequestT = TypeVar("RequestT", bound=msgspec.Struct)
ReplyT = TypeVar("ReplyT", bound=msgspec.Struct)

# What travels behind a structure. Pieces of files are read, or sent by the kernel, when their turn comes.
Pieces = Sequence["bytes | memoryview | FileSlice"]


class Nothing(msgspec.Struct, frozen=True):
    """A reply that says only that it was done."""


class Abandoned(msgspec.Struct, frozen=True):
    """The caller of a call on this connection waits for it no longer."""

    number: int


class Method(msgspec.Struct, Generic[RequestT, ReplyT], frozen=True):
    """Something a node can be asked to do. Names are ``area.verb``, such as ``raft.message``.

    What is bulk has a connection of its own, so that large bodies do not hold up what is urgent. What is for visitors
    may be asked before one is a node of the cluster; nothing else may. What ends with its caller is cancelled where it
    is served once the caller waits no longer; anything else is done to its end.
    """

    name: str
    request: type[RequestT]
    reply: type[ReplyT]
    is_bulk: bool = False
    is_for_visitors: bool = False
    ends_with_caller: bool = False


class Received(NamedTuple):
    """A reply with the bytes behind it."""

    reply: Any
    body: memoryview


class Reply(NamedTuple):
    """What a handler gives back if it has more than a structure to say."""

    reply: msgspec.Struct
    body: Pieces = ()


# A node that does not know it does the call to its end.
ABANDON: Final = Method("call.abandon", Abandoned, Nothing)

# The caller's node id, the request, and the bytes behind it. May answer at once or later.
Handler = Callable[[int, Any, memoryview], "msgspec.Struct | Reply | Awaitable[msgspec.Struct | Reply]"]

CALL_TIMEOUT_S = 10.0


def check_sender(sender: int, node_id: int) -> None:
    """A node speaks for itself only: refuse a message that names another one than whose link it came over."""
    if sender != node_id:
        raise PolicyViolation(f"Node {sender} sent a message in the name of node {node_id}.")


class Peers(Protocol):
    """The other nodes, by their ids. Only nodes of the same cluster are talked to, once its id is known."""

    cluster_id: str

    def serve(self, method: Method[Any, Any], handler: Handler) -> None:
        """Answer a method from now on. Calls before that are refused with `PeerUnavailable`."""

    def tell(self, node_id: int, method: Method[RequestT, Any], request: RequestT, body: Pieces = ()) -> None:
        """Send, if the node is connected; begin to connect if it is not. Never waits and never fails."""

    async def call(
        self,
        node_id: int,
        method: Method[RequestT, Any],
        request: RequestT,
        body: Pieces = (),
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Received:
        """Ask, connecting first if need be, and return the reply. A call to this node itself is served directly."""

    async def call_address(
        self,
        host: str,
        port: int,
        method: Method[RequestT, Any],
        request: RequestT,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Received:
        """Ask the node at an address, whose id is not known yet. The connection is closed afterwards."""

    def introduce(self, node_id: int, host: str, port: int) -> None:
        """Learn or correct where a node is to be reached."""

    def forget(self, node_id: int) -> None:
        """A node is no longer one of us: close its connections."""

    def is_connected(self, node_id: int) -> bool: ...

    def on_connected(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with a node's id whenever a connection to it is up."""

    def on_lost(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with a node's id whenever the connection to it broke."""
