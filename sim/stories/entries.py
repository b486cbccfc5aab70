"""Stories of entries: when one is committed, and what a log may keep, cut and count."""

from __future__ import annotations

from penstock.consensus.raft.messages import AppendEntries, AppendResponse
from sim.stage import Stage


def figure_8() -> None:
    """An entry of an older term is on a majority of the disks, and is replaced all the same (the paper's figure 8)."""
    stage = Stage(5, entries_at_once=1)
    stage.elect(1, 2, 3, 4, 5)
    stage[1].propose(b"a")
    stage.deliver(1, 2)
    stage[1].crash()
    stage.elect(5, 3, 4, is_heard=False)
    stage[5].crash()
    stage[1].start()
    stage.elect(1, 2, 3, 4, is_heard=False)
    stage.beat(1, 2)
    # Node 3 takes the old entry and no more.
    for _ in range(3):
        if stage[3].disk.last_index == stage[2].disk.last_index - 1:
            break
        stage.beat(1)
        for append in stage.keep(AppendEntries, 1, 3)[:1]:
            stage.hand(append)
        for answer in stage.keep(AppendResponse, 3, 1):
            stage.hand(answer)
    assert stage[1].applied == []
    stage[1].crash()
    stage[5].start()
    stage.elect(5, 3, 4)
    stage[5].propose(b"b")
    stage.deliver(5, 2, 3, 4)
    assert stage[3].core.commit_index > 2
    stage[1].start()
    for _ in range(3):
        stage.beat(5, 1, 2, 3, 4)
    assert stage[1].applied == [b"b"]


def a_message_that_comes_twice_takes_nothing_away() -> None:
    stage = Stage(3)
    stage.elect(1, 2, 3)
    stage[1].propose(b"a")
    (early,) = stage.keep(AppendEntries, 1, 2)
    stage.hand(early)
    stage[1].propose(b"b")
    stage.deliver(1, 2, 3)
    before = stage[2].disk.last_index
    stage.hand(early)
    assert stage[2].disk.last_index == before


def an_answer_of_an_older_term_counts_for_nothing() -> None:
    """A leader is told, in a later term of its own, what a follower had in an earlier one and has no more."""
    stage = Stage(5)
    stage.elect(1, 2, 3, 4, 5)
    for number in range(8):
        stage[1].propose(b"%d" % number)
    for append in stage.keep(AppendEntries, 1, 2):
        stage.hand(append)
    late = stage.keep(AppendResponse, 2, 1)
    stage.elect(3, 4, 5, is_heard=False)
    for _ in range(2):
        stage.beat(3, 1)
        stage.beat(3, 2)
    stage[3].crash()
    stage.elect(1, 4, 5, is_heard=False)
    stage.beat(1, 4)
    stage.beat(1, 4)
    for answer in late:
        stage.hand(answer)
    last = stage[1].disk.last_index
    assert stage[1].core.commit_index < last
    stage.beat(1, 2, 4, 5)
    stage.beat(1, 2, 4, 5)
    assert stage[1].core.commit_index == last


def a_leader_counts_itself_only_by_its_disk() -> None:
    stage = Stage(3)
    stage.elect(1, 2, 3)
    stage[1].hold_disk()
    stage[1].propose(b"a")
    stage.deliver(1, 2)
    assert stage[1].applied == []
    stage[1].release_disk()
    assert stage[1].applied == [b"a"]


def a_leader_does_not_count_what_was_cut_from_its_disk() -> None:
    """It had as many entries once, but they were others."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    for number in range(5):
        stage[1].propose(b"%d" % number)
    stage.elect(2, 3, is_heard=False)
    for _ in range(2):
        stage.beat(2, 1)
    assert stage[1].disk.last_index == stage[2].disk.last_index, "node 1 was to be brought to node 2's log"
    stage[2].crash()
    stage[2].start()
    stage.elect(1, 3, is_heard=False)
    stage[1].hold_disk()
    stage[1].propose(b"a")
    stage.beat(1, 3)
    stage.beat(1, 3)
    assert stage[1].applied == []
    stage[1].release_disk()
    assert stage[1].applied == [b"a"]


def a_write_that_ends_late_says_nothing_of_newer_entries() -> None:
    """What a leader wrote was cut before it was on disk; there are other entries at those places now."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    stage[1].hold_disk()
    for number in range(5):
        stage[1].propose(b"%d" % number)
    stage.elect(2, 3, is_heard=False)
    stage.beat(2, 1)
    stage[1].release_disk()
    stage.beat(2, 1)
    stage.beat(2, 1)
    assert stage[1].disk.last_index == stage[2].disk.last_index
    stage[2].restart()
    stage.elect(1, 3, is_heard=False)
    stage[1].hold_disk()
    stage[1].propose(b"a")
    stage.beat(1, 3)
    stage.beat(1, 3)
    assert stage[1].applied == []


def a_single_voter_leads_by_its_disk() -> None:
    """It needs nobody's vote, so nobody waits for its own to be on disk: a crash would let it lead the term twice."""
    stage = Stage(2, voters=1)
    stage.elect(1)
    stage[1].change(stage.first_members.with_learner(stage[2].member))
    stage.beat(1, 2)
    stage.beat(1, 2)
    for data in (b"a", b"b"):
        stage[1].restart()
        stage[1].hold_disk()
        stage.stand(1)
        stage[1].propose(data)
        stage.deliver(1, 2)
    stage[1].release_disk()
    stage.beat(1, 2)
    stage.beat(1, 2)
    assert stage[1].applied == stage[2].applied == [b"b"]
