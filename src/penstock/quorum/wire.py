"""Raft's messages as they travel between nodes: short arrays instead of the core's facts.

Each names the disk it is meant for as well as the node: a node that comes back with another disk, or as part of another
cluster, must not take what was said to the one before it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cluster.raft.messages import (
    Append,
    Appended,
    AskVote,
    Entry,
    GiveVote,
    Kind,
    Member,
    Members,
    Message,
    SendSnapshot,
    Snapshot,
    SnapshotTaken,
    TakeOver,
)
from penstock.peers.port import Method, Nothing


class _Shape(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What each message says beyond who says it, in which term."""


class _AskVote(_Shape, frozen=True, tag=1):
    last_index: int
    last_term: int
    is_trial: bool
    is_handed_over: bool


class _GiveVote(_Shape, frozen=True, tag=2):
    is_granted: bool
    is_trial: bool


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    index: int
    term: int
    kind: Kind
    data: bytes
    members: Members | None


class _Append(_Shape, frozen=True, tag=3):
    previous_index: int
    previous_term: int
    entries: tuple[_Entry, ...]
    commit: int
    round: int


class _Appended(_Shape, frozen=True, tag=4):
    is_accepted: bool
    index: int
    round: int


class _SendSnapshot(_Shape, frozen=True, tag=5):
    index: int
    term: int
    members: Members
    data: bytes
    position: int
    size: int
    round: int


class _SnapshotTaken(_Shape, frozen=True, tag=6):
    index: int
    position: int
    round: int


class _TakeOver(_Shape, frozen=True, tag=7):
    pass


class RaftMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message from one disk to another."""

    sender: Member
    to: Member
    term: int
    body: _AskVote | _GiveVote | _Append | _Appended | _SendSnapshot | _SnapshotTaken | _TakeOver


RAFT_MESSAGE: Final = Method("raft.message", RaftMessage, Nothing)


def pack(message: Message, directory_id: str) -> RaftMessage:
    """A core's message as it travels, for the disk it is meant for."""
    return RaftMessage(message.sender, Member(message.to, directory_id), message.term, _pack_body(message))


def _pack_body(
    message: Message,
) -> _AskVote | _GiveVote | _Append | _Appended | _SendSnapshot | _SnapshotTaken | _TakeOver:
    match message:
        case AskVote():
            return _AskVote(message.last_index, message.last_term, message.is_trial, message.is_handed_over)
        case GiveVote():
            return _GiveVote(message.is_granted, message.is_trial)
        case Append():
            entries = tuple(
                _Entry(entry.index, entry.term, entry.kind, entry.data, entry.members) for entry in message.entries
            )
            return _Append(message.previous_index, message.previous_term, entries, message.commit, message.round)
        case Appended():
            return _Appended(message.is_accepted, message.index, message.round)
        case SendSnapshot():
            part = message.snapshot
            return _SendSnapshot(
                part.index, part.term, part.members, part.data, message.position, message.size, message.round
            )
        case SnapshotTaken():
            return _SnapshotTaken(message.index, message.position, message.round)
        case TakeOver():
            return _TakeOver()
    raise AssertionError(f"no form for {message!r}")


def unpack(message: RaftMessage) -> Message:
    """A core's message from what travelled."""
    sender, to, term, body = message.sender, message.to.node_id, message.term, message.body
    match body:
        case _AskVote(last_index, last_term, is_trial, is_handed_over):
            return AskVote(
                sender=sender,
                to=to,
                term=term,
                last_index=last_index,
                last_term=last_term,
                is_trial=is_trial,
                is_handed_over=is_handed_over,
            )
        case _GiveVote(is_granted, is_trial):
            return GiveVote(sender=sender, to=to, term=term, is_granted=is_granted, is_trial=is_trial)
        case _Append(previous_index, previous_term, entries, commit, round_):
            return Append(
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
        case _Appended(is_accepted, index, round_):
            return Appended(sender=sender, to=to, term=term, is_accepted=is_accepted, index=index, round=round_)
        case _SendSnapshot(index, of_term, members, data, position, size, round_):
            snapshot = Snapshot(index, of_term, members, data)
            return SendSnapshot(
                sender=sender, to=to, term=term, snapshot=snapshot, position=position, size=size, round=round_
            )
        case _SnapshotTaken(index, position, round_):
            return SnapshotTaken(sender=sender, to=to, term=term, index=index, position=position, round=round_)
        case _TakeOver():
            return TakeOver(sender=sender, to=to, term=term)
