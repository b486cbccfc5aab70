"""Every message arrives as it was sent."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.quorum.samples import TRIO, command, snapshot

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
    SnapshotTaken,
    TakeOver,
)
from penstock.quorum.wire import RaftMessage, pack, unpack

ME = Member(1, "disk-1")
CHANGED = Members({1: "disk-1"}, {4: "disk-4"})
MESSAGES = [
    AskVote(sender=ME, to=2, term=3, last_index=4, last_term=2, is_trial=True),
    AskVote(sender=ME, to=2, term=3, last_index=4, last_term=2, is_trial=False, is_handed_over=True),
    GiveVote(sender=ME, to=2, term=3, is_granted=True, is_trial=False),
    Append(sender=ME, to=2, term=3, previous_index=1, previous_term=1, entries=(), commit=1, round=9),
    Append(
        sender=ME,
        to=2,
        term=3,
        previous_index=1,
        previous_term=1,
        entries=(command(2), Entry(3, 3, Kind.NOTHING, b""), Entry(4, 3, Kind.MEMBERS, b"", CHANGED)),
        commit=1,
        round=9,
    ),
    Appended(sender=ME, to=2, term=3, is_accepted=False, index=7, round=9),
    SendSnapshot(sender=ME, to=2, term=3, snapshot=snapshot(9, 2, TRIO), position=64, size=999, round=9),
    SnapshotTaken(sender=ME, to=2, term=3, index=9, position=64, round=9),
    TakeOver(sender=ME, to=2, term=3),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    data = msgspec.msgpack.encode(pack(message, "disk-2"))
    travelled = msgspec.msgpack.decode(data, type=RaftMessage)
    assert travelled.to == Member(2, "disk-2")
    assert unpack(travelled) == message


def test_a_heartbeat_is_small() -> None:
    heartbeat = Append(sender=ME, to=2, term=3, previous_index=1, previous_term=1, entries=(), commit=1, round=9)
    assert len(msgspec.msgpack.encode(pack(heartbeat, "disk-2"))) < 40
