"""What the nodes of a quorum send each other: Raft's messages, greetings of nodes that are not members yet, commands.

Raft's messages travel as short arrays instead of the core's facts. Each names the disk it is meant for as well as the
node: a node that comes back with another disk, or as part of another cluster, must not take what was meant for the one
before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.consensus.commands import Answer, Command
from penstock.consensus.raft.messages import (
    AppendEntries,
    AppendResponse,
    Entry,
    EntryKind,
    InstallSnapshot,
    Member,
    Members,
    RaftMessage,
    RequestVote,
    Snapshot,
    SnapshotResponse,
    TimeoutNow,
    VoteResponse,
)
from penstock.network.frames import Failure
from penstock.network.port import Method, Nothing


class _Shape(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What each message says beyond who says it, in which term."""


class _RequestVote(_Shape, frozen=True, tag=1):
    last_index: int
    last_term: int
    is_trial: bool
    is_handed_over: bool


class _VoteResponse(_Shape, frozen=True, tag=2):
    is_granted: bool
    is_trial: bool


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    index: int
    term: int
    kind: EntryKind
    data: bytes
    members: Members | None


class _AppendEntries(_Shape, frozen=True, tag=3):
    previous_index: int
    previous_term: int
    entries: tuple[_Entry, ...]
    commit: int
    round: int


class _AppendResponse(_Shape, frozen=True, tag=4):
    is_accepted: bool
    index: int
    round: int


class _InstallSnapshot(_Shape, frozen=True, tag=5):
    index: int
    term: int
    members: Members
    data: bytes
    position: int
    size: int
    round: int


class _SnapshotResponse(_Shape, frozen=True, tag=6):
    index: int
    position: int
    round: int


class _TimeoutNow(_Shape, frozen=True, tag=7):
    pass


class PackedMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message from one disk to another."""

    sender: Member
    to: Member
    term: int
    body: (
        _RequestVote
        | _VoteResponse
        | _AppendEntries
        | _AppendResponse
        | _InstallSnapshot
        | _SnapshotResponse
        | _TimeoutNow
    )


RAFT_MESSAGE: Final = Method("raft.message", PackedMessage, Nothing)


def pack(message: RaftMessage, directory_id: str) -> PackedMessage:
    """A core's message as it travels, for the disk it is meant for."""
    return PackedMessage(message.sender, Member(message.to, directory_id), message.term, _pack_body(message))


def _pack_body(
    message: RaftMessage,
) -> (
    _RequestVote | _VoteResponse | _AppendEntries | _AppendResponse | _InstallSnapshot | _SnapshotResponse | _TimeoutNow
):
    match message:
        case RequestVote():
            return _RequestVote(message.last_index, message.last_term, message.is_trial, message.is_handed_over)
        case VoteResponse():
            return _VoteResponse(message.is_granted, message.is_trial)
        case AppendEntries():
            entries = tuple(
                _Entry(entry.index, entry.term, entry.kind, entry.data, entry.members) for entry in message.entries
            )
            return _AppendEntries(message.previous_index, message.previous_term, entries, message.commit, message.round)
        case AppendResponse():
            return _AppendResponse(message.is_accepted, message.index, message.round)
        case InstallSnapshot():
            part = message.snapshot
            return _InstallSnapshot(
                part.index, part.term, part.members, part.data, message.position, message.size, message.round
            )
        case SnapshotResponse():
            return _SnapshotResponse(message.index, message.position, message.round)
        case TimeoutNow():
            return _TimeoutNow()
    raise AssertionError(f"no form for {message!r}")


def unpack(message: PackedMessage) -> RaftMessage:
    """A core's message from what travelled."""
    sender, to, term, body = message.sender, message.to.node_id, message.term, message.body
    match body:
        case _RequestVote(last_index, last_term, is_trial, is_handed_over):
            return RequestVote(
                sender=sender,
                to=to,
                term=term,
                last_index=last_index,
                last_term=last_term,
                is_trial=is_trial,
                is_handed_over=is_handed_over,
            )
        case _VoteResponse(is_granted, is_trial):
            return VoteResponse(sender=sender, to=to, term=term, is_granted=is_granted, is_trial=is_trial)
        case _AppendEntries(previous_index, previous_term, entries, commit, round_):
            return AppendEntries(
                sender=sender,
                to=to,
                term=term,
                previous_index=previous_index,
                previous_term=previous_term,
                entries=tuple(
                    Entry(entry.index, entry.term, entry.kind, entry.data, entry.members) for entry in entries
                ),
                commit=commit,
                round=round_,
            )
        case _AppendResponse(is_accepted, index, round_):
            return AppendResponse(sender=sender, to=to, term=term, is_accepted=is_accepted, index=index, round=round_)
        case _InstallSnapshot(index, of_term, members, data, position, size, round_):
            snapshot = Snapshot(index, of_term, members, data)
            return InstallSnapshot(
                sender=sender, to=to, term=term, snapshot=snapshot, position=position, size=size, round=round_
            )
        case _SnapshotResponse(index, position, round_):
            return SnapshotResponse(sender=sender, to=to, term=term, index=index, position=position, round=round_)
        case _TimeoutNow():
            return TimeoutNow(sender=sender, to=to, term=term)


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
    index: int = 0  # up to where entries were committed when the node was taken in


GREET: Final = Method("quorum.greet", Greet, Greeting, is_for_visitors=True)
JOIN: Final = Method("quorum.join", Join, Joined)


class Submit(msgspec.Struct, frozen=True):
    command: Command


class Submitted(msgspec.Struct, frozen=True):
    """The answer, or why there is none, and the index at which all that it speaks of is applied."""

    answer: Answer | None
    index: int
    refusal: Failure | None = None


SUBMIT: Final = Method("controller.submit", Submit, Submitted)
