"""Every message arrives as it was sent."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.quorum.samples import TRIO, command, snapshot

from penstock.consensus.quorum.wire import PackedMessage, pack, unpack
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
    SnapshotResponse,
    TimeoutNow,
    VoteResponse,
)

ME = Member(1, "disk-1")
CHANGED = Members({1: "disk-1"}, {4: "disk-4"})
MESSAGES = [
    RequestVote(sender=ME, to=2, term=3, last_index=4, last_term=2, is_trial=True),
    RequestVote(sender=ME, to=2, term=3, last_index=4, last_term=2, is_trial=False, is_handed_over=True),
    VoteResponse(sender=ME, to=2, term=3, is_granted=True, is_trial=False),
    AppendEntries(sender=ME, to=2, term=3, previous_index=1, previous_term=1, entries=(), commit=1, round=9),
    AppendEntries(
        sender=ME,
        to=2,
        term=3,
        previous_index=1,
        previous_term=1,
        entries=(command(2), Entry(3, 3, EntryKind.NOTHING, b""), Entry(4, 3, EntryKind.MEMBERS, b"", CHANGED)),
        commit=1,
        round=9,
    ),
    AppendResponse(sender=ME, to=2, term=3, is_accepted=False, index=7, round=9),
    InstallSnapshot(sender=ME, to=2, term=3, snapshot=snapshot(9, 2, TRIO), position=64, size=999, round=9),
    SnapshotResponse(sender=ME, to=2, term=3, index=9, position=64, round=9),
    TimeoutNow(sender=ME, to=2, term=3),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: RaftMessage) -> None:
    data = msgspec.msgpack.encode(pack(message, "disk-2"))
    travelled = msgspec.msgpack.decode(data, type=PackedMessage)
    assert travelled.to == Member(2, "disk-2")
    assert unpack(travelled) == message


def test_a_heartbeat_is_small() -> None:
    heartbeat = AppendEntries(sender=ME, to=2, term=3, previous_index=1, previous_term=1, entries=(), commit=1, round=9)
    assert len(msgspec.msgpack.encode(pack(heartbeat, "disk-2"))) < 40
