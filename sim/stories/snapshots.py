"""Stories of snapshots: they come in pieces, and stand for what was there before."""

from __future__ import annotations

from penstock.consensus.raft.messages import AppendEntries, AppendResponse, InstallSnapshot, Snapshot, SnapshotResponse
from sim.quorum import pack
from sim.stage import Stage

_WORDS = (b"alpha", b"bravo", b"charlie", b"delta", b"echo", b"foxtrot", b"golf", b"hotel")


def a_snapshot_is_replaced_in_the_middle() -> None:
    """A leader dies when half of its snapshot is there; its successor has another one."""
    stage = _written_without_node_3()
    stage[1].compact()
    _begin_to_send(stage, 1)
    stage[1].crash()
    stage.elect(2, 4, 5)
    stage[2].propose(b"india")
    stage.deliver(2, 4, 5)
    stage[2].compact()
    for _ in range(20):
        stage.beat(2, 3, 4, 5)
    assert stage[3].applied == [*_WORDS, b"india"]


def two_leaders_write_the_same_snapshot_differently() -> None:
    """Same index, same term, same state, other bytes: half of one and half of the other is neither."""
    stage = _written_without_node_3()
    core = stage[1].core
    state = pack([*_WORDS])
    for node_id, data in ((1, state + bytes(8)), (2, bytes(8) + state)):
        stage[node_id].install(
            Snapshot(core.commit_index, core.log.term_at(core.commit_index) or 0, core.members, data)
        )
    _begin_to_send(stage, 1)
    stage[1].crash()
    stage.elect(2, 4, 5)
    for _ in range(20):
        stage.beat(2, 3, 4, 5)
    assert stage[3].applied == [*_WORDS]


def entries_that_a_snapshot_replaced_are_on_no_disk() -> None:
    """A follower had more entries than the snapshot has, of another history; then it leads itself."""
    stage = Stage(5)
    stage.elect(3, 1, 2, 4, 5)
    for number in range(20):
        stage[3].propose(b"%d" % number)
    stage.elect(1, 2, 4, 5)
    stage[1].propose(b"a")
    stage.deliver(1, 2, 4, 5)
    stage.beat(1, 2, 4, 5)
    stage[1].compact()
    stage.drop()
    for _ in range(4):
        stage.beat(1, 3)
    assert stage[3].disk.snapshot.index == stage[1].disk.snapshot.index
    assert stage[3].disk.last_index == stage[1].disk.last_index, "node 3 was to have the snapshot and no more"
    stage[1].crash()
    stage.elect(3, 2, 4, is_heard=False)
    stage[3].hold_disk()
    stage[3].propose(b"b")
    for _ in range(3):
        stage.beat(3, 2, 4)
    stage[3].release_disk()
    stage.beat(3, 2, 4)
    assert stage[3].applied == [b"a", b"b"]


def a_snapshot_brings_its_members() -> None:
    """A voter that was taken in long ago hears of it for the first time."""
    stage = Stage(4, voters=3)
    stage.elect(1, 2, 3)
    stage[1].change(stage.first_members.with_voter(stage[4].member))
    for _ in range(2):
        stage.beat(1, 2, 3)
    stage.drop()
    stage[1].compact()
    for _ in range(4):
        stage.beat(1, 2, 3, 4)
    assert stage[4].core.log.snapshot.index > 1
    assert stage[4].core.members.is_voter(stage[4].member)


def a_piece_that_is_lost_is_sent_again() -> None:
    stage = _written_without_node_3()
    stage[1].compact()
    _begin_to_send(stage, 1)
    stage[3].restart()  # it forgets the pieces it has
    for _ in range(20):
        stage.beat(1, 2, 3, 4, 5)
    assert stage[3].applied == [*_WORDS]


def _written_without_node_3() -> Stage:
    stage = Stage(5)
    stage.elect(1, 2, 4, 5)
    for word in _WORDS:
        stage[1].propose(word)
        stage.deliver(1, 2, 4, 5)
    stage.beat(1, 2, 4, 5)
    stage.drop()
    assert stage[2].applied == [*_WORDS]
    return stage


def _begin_to_send(stage: Stage, leader: int) -> None:
    """Until node 3 has the first piece, and has said so."""
    for _ in range(4):
        for append in stage.keep(AppendEntries, leader, 3):
            stage.hand(append)
        for answer in stage.keep(AppendResponse, 3, leader):
            stage.hand(answer)
        stage.beat(leader, 2, 4, 5)
    stage.hand(stage.keep(InstallSnapshot, leader, 3)[0])
    for taken in stage.keep(SnapshotResponse, 3, leader):
        stage.hand(taken)
    stage.drop()
