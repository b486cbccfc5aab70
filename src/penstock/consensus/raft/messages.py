"""What the members of a quorum say to each other, and what they keep.

A member is a node together with the disk it has: a node that comes back with an empty disk has forgotten its votes, so
it is another member and is never counted as the old one (KIP-853).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from penstock.errors import InvalidRequest


class Member(NamedTuple):
    node_id: int
    directory_id: str


class EntryKind(Enum):
    """What an entry of the log is."""

    COMMAND = "command"  # for the state machine
    NOTHING = "nothing"  # a new leader's first entry, which lets it commit those of its predecessors
    MEMBERS = "members"


@dataclass(frozen=True, slots=True)
class Members:
    """Who has a vote and who only listens, by node id and with their directory ids."""

    voters: Mapping[int, str]
    learners: Mapping[int, str] = field(default_factory=dict)

    def is_voter(self, member: Member) -> bool:
        return self.voters.get(member.node_id) == member.directory_id

    def knows(self, member: Member) -> bool:
        return self.is_voter(member) or self.learners.get(member.node_id) == member.directory_id

    def directory_of(self, node_id: int) -> str:
        return self.voters[node_id] if node_id in self.voters else self.learners[node_id]

    def others(self, me: int) -> list[int]:
        return [node_id for node_id in (*self.voters, *self.learners) if node_id != me]

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def check_step_to(self, members: Members) -> None:
        """Refuse unless it is one voter that comes or goes, or none: then old and new majorities have one in common."""
        changed = {*members.voters.items()} ^ {*self.voters.items()}
        if len(changed) > 1:
            raise InvalidRequest("Voters are added or removed one at a time, and one with a new disk is another voter.")
        if not members.voters:
            raise InvalidRequest("The last voter cannot be removed.")
        if members.voters.keys() & members.learners.keys():
            raise InvalidRequest("A node is a voter or a learner, not both.")

    def with_learner(self, member: Member) -> Members:
        return replace(self, learners={**self.learners, member.node_id: member.directory_id})

    def with_voter(self, member: Member) -> Members:
        return Members(
            {**self.voters, member.node_id: member.directory_id},
            {node_id: disk for node_id, disk in self.learners.items() if node_id != member.node_id},
        )

    def without(self, node_id: int) -> Members:
        return Members(
            {known: disk for known, disk in self.voters.items() if known != node_id},
            {known: disk for known, disk in self.learners.items() if known != node_id},
        )


@dataclass(frozen=True, slots=True)
class Entry:
    index: int
    term: int
    kind: EntryKind
    data: bytes
    members: Members | None = None


class HardState(NamedTuple):
    """What must be on disk before a message speaks of it: the term, and the member that this one voted for in it."""

    term: int = 0
    voted_for: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine as of an index, in place of all entries up to there."""

    index: int
    term: int
    members: Members
    data: bytes


# -- messages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftMessage:
    """All messages name their sender's term; an older one is out of date, a newer one makes followers."""

    sender: Member
    to: int
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestVote(RaftMessage):
    """A candidate's request. A *trial* asks whether it would be worth it, and changes nothing (pre-vote)."""

    last_index: int
    last_term: int
    is_trial: bool
    is_handed_over: bool = False  # the leader itself wants this election


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse(RaftMessage):
    is_granted: bool
    is_trial: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEntries(RaftMessage):
    """Entries from a leader that follow on ``previous``; none is a heartbeat. Answers name the same round."""

    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResponse(RaftMessage):
    """How far the follower's log agrees with the leader's; or, refused, from where it may begin to."""

    is_accepted: bool
    index: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot(RaftMessage):
    """A piece of a snapshot, beginning at ``position`` of its data."""

    snapshot: Snapshot  # its data is the piece alone
    position: int
    size: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotResponse(RaftMessage):
    """How much of a snapshot is there; the whole of it once ``position`` is its size."""

    index: int
    position: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow(RaftMessage):
    """The leader asks its most advanced follower to stand for election at once."""
