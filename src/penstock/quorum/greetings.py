"""What nodes say to each other before they are members of one quorum, or when they come back to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.cluster.raft.messages import Members
from penstock.peers.port import Method

Address = tuple[str, int]


class Greet(msgspec.Struct, frozen=True, kw_only=True):
    """A node says who it is: its disk, where other nodes reach it, and the first nodes as it was told them."""

    node_id: int
    directory_id: str
    address: Address | None
    first: tuple[int, ...]


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """The same of the node that was greeted, and what it knows of the quorum; no members if it belongs to none."""

    node_id: int
    directory_id: str
    first: tuple[int, ...]
    members: Members | None
    leader_id: int | None
    addresses: Mapping[int, Address]


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """A node asks to be taken in, as a learner at first."""

    node_id: int
    directory_id: str
    address: Address | None


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """The members once the node is one of them; or why it is not, and who may know more."""

    members: Members | None
    leader_id: int | None
    addresses: Mapping[int, Address]
    reason: str = ""


GREET: Final = Method("quorum.greet", Greet, Greeting, is_for_visitors=True)
JOIN: Final = Method("quorum.join", Join, Joined)
