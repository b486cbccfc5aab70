"""Offsets that are part of a producer's transaction: held until it ends, in memory and after a replay alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.groups.journal import MemoryJournal

from penstock.config.settings import GroupSettings
from penstock.errors import UnknownMember
from penstock.features.groups.coordinator import GroupShard
from penstock.features.groups.messages import (
    CommitInTransaction,
    CommitOffsets,
    Delete,
    DeleteOffsets,
    MemberIdentity,
    OffsetCommit,
    Settled,
)
from penstock.machines.messages import ProducerIdentity, Rejected

NOBODY = MemberIdentity(member_id="")
WEEK_MS = 7 * 24 * 3600 * 1000


class Desk:
    """A shard with a journal, a clock, and a memory of what was told."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.wall_ms = 1_000
        self.shard = self._open()

    def _open(self) -> GroupShard:
        shard = GroupShard(self.journal, GroupSettings(), lambda: 0, lambda: self.wall_ms, lambda work: work())
        shard.open(shard.read_log())
        return shard

    def restart(self) -> None:
        self.journal.crash()
        self.shard = self._open()

    def ask(self, group: str, request: Any) -> Any:
        told: list[Any] = []
        self.shard.ask(group, request, told.append)
        return told[0] if told else None

    def commit(self, offset: int, partition: int = 0, group: str = "g") -> None:
        self.ask(group, CommitOffsets(NOBODY, (_offset(partition, offset),)))

    def hold(self, producer_id: int, offset: int, partition: int = 0, group: str = "g", **identity: Any) -> Any:
        who = MemberIdentity(**identity) if identity else NOBODY
        return self.ask(
            group, CommitInTransaction(who, ProducerIdentity(producer_id, 0), (_offset(partition, offset),))
        )

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        self.journal.end_transaction(producer_id, is_commit=is_commit)
        self.shard.end_transaction(producer_id, is_commit=is_commit)

    def committed(self, partition: int = 0, group: str = "g") -> int | None:
        found = self.shard.machines.get(group)
        kept = None if found is None else found.offsets.get(("t", partition))
        return None if kept is None else kept.offset

    def is_undecided(self, partition: int = 0, group: str = "g") -> bool:
        return self.shard.machines[group].offsets.is_undecided(("t", partition))


def _offset(partition: int, offset: int) -> OffsetCommit:
    return OffsetCommit("t", partition, offset, -1, "", "id-of-t")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(("is_commit", "expected"), [(True, 7), (False, 3)])
def test_they_count_once_the_transaction_is_committed(
    desk: Desk, *, is_restarted: bool, is_commit: bool, expected: int
) -> None:
    desk.commit(3)
    assert isinstance(desk.hold(9, 7), Settled)
    if is_restarted:
        desk.restart()
    assert desk.committed() == 3
    assert desk.is_undecided()
    desk.end(9, is_commit=is_commit)
    assert desk.committed() == expected
    assert not desk.is_undecided()
    desk.restart()
    assert desk.committed() == expected


def test_a_later_plain_commit_stands(desk: Desk) -> None:
    """It is the last word in the log, so it is what compaction would leave."""
    desk.hold(9, 7)
    desk.commit(5)
    desk.end(9, is_commit=True)
    assert desk.committed() == 5
    desk.restart()
    assert desk.committed() == 5


def test_offsets_deleted_meanwhile_stay_deleted(desk: Desk) -> None:
    desk.commit(3)
    desk.hold(9, 7)
    desk.ask("g", DeleteOffsets((("t", 0),)))
    desk.end(9, is_commit=True)
    assert desk.committed() is None
    desk.restart()
    assert desk.committed() is None


def test_a_group_with_nothing_but_an_open_transaction_is_kept_until_it_ends(desk: Desk) -> None:
    desk.hold(9, 7)
    assert "g" in desk.shard.machines
    desk.restart()
    assert "g" in desk.shard.machines
    desk.end(9, is_commit=False)
    assert "g" not in desk.shard.machines


def test_the_end_of_one_transaction_leaves_others_alone(desk: Desk) -> None:
    desk.hold(1, 10, partition=0)
    desk.hold(2, 20, partition=1)
    desk.hold(2, 30, partition=0, group="h")
    desk.end(1, is_commit=True)
    assert desk.committed(0) == 10
    assert desk.committed(1) is None
    desk.end(2, is_commit=True)
    assert desk.committed(1) == 20
    assert desk.committed(0, "h") == 30


def test_a_member_that_is_not_one_is_refused(desk: Desk) -> None:
    with pytest.raises(UnknownMember):
        desk.hold(9, 7, member_id="ghost", generation=4)
    assert desk.journal.end_offset == 0


def test_an_end_that_comes_while_the_log_is_being_read_is_not_missed(desk: Desk) -> None:
    desk.hold(9, 7)
    shard = GroupShard(desk.journal, GroupSettings(), lambda: 0, lambda: 0, lambda work: work())
    groups = shard.read_log()
    desk.journal.end_transaction(9, is_commit=True)
    shard.end_transaction(9, is_commit=True)
    shard.open(groups)
    desk.shard = shard
    assert desk.committed() == 7


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_deleted_group_does_not_come_back_with_a_transaction(desk: Desk, *, is_restarted: bool) -> None:
    desk.commit(3)
    desk.hold(9, 7)
    desk.ask("g", Delete())
    if is_restarted:
        desk.restart()
    desk.end(9, is_commit=True)
    assert "g" not in desk.shard.machines
    desk.restart()
    assert "g" not in desk.shard.machines


def test_held_offsets_do_not_expire(desk: Desk) -> None:
    desk.commit(3)
    desk.hold(9, 7)
    desk.wall_ms += 2 * WEEK_MS
    desk.shard.expire()
    assert desk.committed() == 3
    desk.end(9, is_commit=True)
    assert desk.committed() == 7


def test_a_full_disk_holds_nothing(desk: Desk) -> None:
    desk.journal.is_full = True
    assert isinstance(desk.hold(9, 7), Rejected)
    assert "g" not in desk.shard.machines or not desk.is_undecided()


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 2), st.integers(0, 99)),
        st.tuples(st.just("hold"), st.integers(0, 2), st.integers(0, 99), st.integers(1, 3)),
        st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


@given(_STEPS)
def test_memory_is_what_the_log_says(steps: list[tuple[Any, ...]]) -> None:
    """The dumb twin keeps the whole history and works out each offset from it anew."""
    desk = Desk()
    history: list[tuple[Any, ...]] = []
    for step in steps:
        match step:
            case ("commit", partition, offset):
                desk.commit(offset, partition)
            case ("hold", partition, offset, producer_id):
                desk.hold(producer_id, offset, partition)
            case ("end", producer_id, is_commit):
                desk.end(producer_id, is_commit=is_commit)
            case ("restart",):
                desk.restart()
        history.append(step)
        for partition in range(3):
            assert desk.committed(partition) == _expected(history, partition)


def _expected(history: list[tuple[Any, ...]], partition: int) -> int | None:
    """The offset of the last entry that counts: plain, or of a transaction that was committed after it."""
    for at in range(len(history) - 1, -1, -1):
        match history[at]:
            case ("commit", where, offset) if where == partition:
                return offset
            case ("hold", where, offset, producer_id) if where == partition:
                ends = [step for step in history[at:] if step[0] == "end" and step[1] == producer_id]
                if ends and ends[0][2]:
                    return offset
    return None
