"""What members and coordinators say to each other, in our own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import OffsetOutOfRange, PenstockError
from penstock.machines.messages import ProducerIdentity, Request

Where = tuple[str, int]  # topic and partition


# -- answers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedGroup:
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


class SyncedGroup(NamedTuple):
    protocol_type: str
    protocol: str
    assignment: bytes


class Left(NamedTuple):
    """For each member that was to leave, in order, why it could not, or None."""

    errors: tuple[PenstockError | None, ...]


class Settled(NamedTuple):
    """Done, except for some partitions."""

    refused: Mapping[Where, PenstockError]


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest(Request[JoinedGroup | Promised]):
    """A wish to be a member. ``protocols`` are (name, metadata) in the member's order of preference."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    # The id to take for a member that has none yet; no member has had it before.
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
class SyncGroup(Request[SyncedGroup]):
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


def check_committable(offset: int) -> None:
    """Refuse a negative offset, for the doors whose clients have no use for one."""
    if offset < 0:
        raise OffsetOutOfRange(f"Offset {offset} cannot be committed; offsets begin at 0.")


@dataclass(frozen=True, slots=True)
class CommitOffsets(Request[Settled]):
    """Offsets to remember, for a member or, in an empty group, for anybody."""

    identity: MemberIdentity
    offsets: tuple[OffsetCommit, ...]


@dataclass(frozen=True, slots=True)
class CommitInTransaction(Request[Settled]):
    """Offsets to remember once a producer's transaction is committed."""

    identity: MemberIdentity
    producer: ProducerIdentity
    offsets: tuple[OffsetCommit, ...]


@dataclass(frozen=True, slots=True)
class DeleteOffsets(Request[Settled]):
    """Offsets to forget."""

    places: tuple[Where, ...]


@dataclass(frozen=True, slots=True)
class Delete(Request[None]):
    """The whole group to forget."""
