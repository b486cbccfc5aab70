"""What members and coordinators say to each other, in our own words.

Each request names the type of its answer, so that whoever asks gets it typed. An answer may come at once or much later;
until then the group keeps the `Reply` that came with the request, and it is used exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.broker.groups.records import Change
from penstock.errors import PenstockError

AnswerT = TypeVar("AnswerT")

Where = tuple[str, int]  # topic and partition


class Request(Generic[AnswerT]):
    """Something to ask of a group, and what the answer is."""

    __slots__ = ()


# -- answers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The member is in. The leader gets everybody's (id, instance, metadata) and has to hand out assignments."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader_id: str
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    # A static leader that came back need not assign anew: the assignment in force stays (KIP-814).
    skips_assignment: bool = False


class Promised(NamedTuple):
    """Not in yet: the member has to join again with this id (KIP-394)."""

    member_id: str


class Synced(NamedTuple):
    protocol_type: str
    protocol: str
    assignment: bytes


class Left(NamedTuple):
    """For each member that was to leave, in order, why it could not, or None."""

    errors: tuple[PenstockError | None, ...]


class Settled(NamedTuple):
    """Done, except for some partitions."""

    refused: Mapping[Where, PenstockError]


class Rejected(NamedTuple):
    """The request is refused, now or after a wait."""

    error: PenstockError


Reply = Callable[[Any], None]  # called with the request's answer or with `Rejected`


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Request[Joined | Promised]):
    """A wish to be a member. ``protocols`` are (name, metadata) in the member's order of preference."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    # The id to take for a member that has none yet; nobody has had it before.
    fresh_id: str
    # Whether the member can be sent away once to come back with the id it is given (KIP-394).
    takes_id_first: bool
    # Whether the member understands that it leads and still has nothing to assign (KIP-814).
    can_skip_assignment: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """Who a request comes from, and for which generation it speaks."""

    member_id: str
    instance_id: str | None = None
    generation: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync(Request[Synced]):
    """A member asks for its assignment; the leader brings everybody's."""

    identity: MemberIdentity
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Leave(Request[Left]):
    """Members go; static ones may be named by their instance alone."""

    members: tuple[MemberIdentity, ...]


class OffsetCommit(NamedTuple):
    """An offset to remember."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class Commit(Request[Settled]):
    """Offsets to remember, for a member or, in an empty group, for anybody."""

    identity: MemberIdentity
    offsets: tuple[OffsetCommit, ...]


@dataclass(frozen=True, slots=True)
class DeleteOffsets(Request[Settled]):
    """Offsets to forget."""

    places: tuple[Where, ...]


@dataclass(frozen=True, slots=True)
class Delete(Request[None]):
    """The whole group to forget."""


@dataclass(slots=True)
class Outcome:
    """What a decision leads to: changes to persist and apply first, replies to send after that."""

    changes: list[Change] = field(default_factory=list)
    replies: list[tuple[Reply, object]] = field(default_factory=list)

    def reply(self, to: Reply, what: object) -> None:
        self.replies.append((to, what))
