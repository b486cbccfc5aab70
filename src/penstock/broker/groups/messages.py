"""What members and coordinators say to each other, in our own words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.broker.groups.records import Change
from penstock.errors import GroupError


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A wish to be a member. ``protocols`` are (name, metadata) in the member's order of preference."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    # Whether the member can be sent away once to come back with the id it is given (KIP-394).
    takes_id_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The member is in. The leader gets everybody's metadata and has to hand out assignments."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader_id: str
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    # A static leader that came back need not assign anew: the assignment in force stays (KIP-814).
    skips_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """A member asks for its assignment; the leader brings everybody's."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    protocol_type: str
    protocol: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """Who a request comes from, and for which generation it speaks."""

    member_id: str
    instance_id: str | None = None
    generation: int = -1


class Commit(NamedTuple):
    """An offset to remember."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class Rejected(NamedTuple):
    """A waiting request ends in an error. ``member_id`` goes with `MemberIdRequired`."""

    error: GroupError
    member_id: str = ""


JoinReply = Callable[[Joined | Rejected], None]
SyncReply = Callable[[Synced | Rejected], None]


@dataclass(slots=True)
class Outcome:
    """What a decision leads to: changes to persist and apply first, replies to send after that."""

    changes: list[Change] = field(default_factory=list)
    replies: list[tuple[Callable[[Any], None], Any]] = field(default_factory=list)

    def reply(self, to: Callable[[Any], None], what: object) -> None:
        self.replies.append((to, what))
