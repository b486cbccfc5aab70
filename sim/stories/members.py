"""Stories of members: how they come and go without two majorities that know nothing of each other."""

from __future__ import annotations

from contextlib import suppress

from penstock.consensus.raft.messages import Members
from penstock.errors import InvalidRequest, NotController
from sim.stage import Stage


def a_new_leader_does_not_change_members_at_once() -> None:
    """Its predecessor's change may be half done: majorities of the two would not overlap (raft-dev, July 2015)."""
    stage = Stage(5, voters=4)
    stage.elect(1, 2, 3, 4)
    stage[1].change(stage.first_members.with_voter(stage[5].member))
    stage.deliver(1, 5)
    stage.elect(2, 3, 4, is_heard=False)
    with suppress(NotController):
        stage[2].change(stage.first_members.without(1))
    stage.beat(2, 3)
    stage.beat(2, 3)
    stage.elect(1, 4, 5)


def a_change_waits_for_the_one_before() -> None:
    """Two steps that are each small enough are too much together."""
    stage = Stage(5, voters=3)
    stage.elect(1, 2, 3)
    stage[1].change(stage[1].core.members.with_voter(stage[4].member))
    with suppress(NotController):
        stage[1].change(stage[1].core.members.with_voter(stage[5].member))
    for _ in range(3):
        stage.beat(1, 4, 5)
    stage.elect(2, 3)
    assert stage[2].core.commit_index > 1


def several_voters_are_not_changed_at_once() -> None:
    """The old majority and the new one would have nobody in common."""
    stage = Stage(5, voters=3)
    stage.elect(1, 2, 3)
    with suppress(InvalidRequest):
        stage[1].change(Members({node_id: stage[node_id].disk.directory_id for node_id in (1, 4, 5)}))
    stage.beat(1, 4, 5)
    stage.beat(1, 4, 5)
    stage.elect(2, 3)


def one_that_was_removed_stands_if_it_must() -> None:
    """Of two voters one removes itself, and the other has not heard of it: it cannot win with a log that is behind."""
    stage = Stage(2)
    stage.elect(1, 2)
    stage[1].change(stage.first_members.without(1))
    stage.drop()
    assert not stage.campaign(2, 1)
    assert stage.campaign(1, 2), "nobody can lead any more"
    assert not stage[1].core.is_leader, "its removal is committed now"
    stage.elect(2)
    assert stage[2].core.is_leader


def a_leader_removes_itself() -> None:
    """It leads until that is committed, by those who stay alone, and is silent afterwards."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    stage[1].change(stage.first_members.without(1))
    index = stage[1].core.log.last_index
    stage.deliver(1, 2)
    assert stage[1].core.commit_index < index, "the one that goes counted itself"
    stage.deliver(1, 2, 3)
    assert stage[1].core.commit_index == index
    assert not stage[1].core.is_leader
    stage.drop()
    for _ in range(3):
        stage.pass_time(2 * stage.pace.election_ms)
        stage.tick(1)
    assert not stage.post, "one that was removed asks for votes"
    stage.elect(2, 3)
    stage[2].propose(b"a")
    stage.deliver(2, 3)
    assert stage[2].applied == [b"a"]


def members_go_back_with_their_entry() -> None:
    """A change that nobody heard of is cut from its leader's log."""
    stage = Stage(4, voters=3)
    stage.elect(1, 2, 3)
    stage[1].change(stage.first_members.with_voter(stage[4].member))
    stage.elect(2, 3)
    for _ in range(3):
        stage.beat(2, 1, 3)
    assert stage[1].core.members == stage.first_members


def a_learner_is_no_voter() -> None:
    stage = Stage(5, voters=3)
    stage.elect(1, 2, 3)
    for node_id in (4, 5):
        stage[1].change(stage[1].core.members.with_learner(stage[node_id].member))
        stage.beat(1, 2, 3, 4, 5)
        stage.beat(1, 2, 3, 4, 5)
    stage[1].propose(b"a")
    stage.deliver(1, 4, 5)
    assert stage[4].disk.last_index == stage[1].disk.last_index
    assert stage[1].applied == []
    assert not stage.campaign(2, 4, 5), "learners elected a leader"


def a_voter_with_an_empty_disk_is_another() -> None:
    """It has forgotten what it acknowledged: with its help one could win who never had that."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    stage[1].propose(b"a")
    stage.deliver(1, 3)
    assert stage[1].applied == [b"a"]
    stage[3].wipe(stage.first_members)
    stage[3].start()
    stage[1].crash()
    assert not stage.campaign(2, 3), "a vote of a disk that has forgotten its votes was counted"


def a_new_disk_begins_from_nothing() -> None:
    """A voter comes back with an empty disk, is made a learner in one step, and is sent all that the old one had."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    for number in range(3):
        stage[1].propose(b"%d" % number)
        stage.deliver(1, 2, 3)
    stage[3].wipe(stage.first_members)
    stage[3].start()
    stage[1].change(stage.first_members.without(3).with_learner(stage[3].member))
    for _ in range(4):
        stage.beat(1, 2, 3)
    assert stage[3].applied == stage[1].applied
    stage[1].change(stage[1].core.members.with_voter(stage[3].member))
    for _ in range(2):
        stage.beat(1, 2, 3)
    assert stage[1].core.is_leader
    assert stage[3].core.members.is_voter(stage[3].member)


def a_new_voter_is_given_time() -> None:
    """Nobody can have heard of it yet, so its silence does not unseat the leader."""
    stage = Stage(2, voters=1)
    stage.elect(1)
    for _ in range(20):
        stage.beat(1)
    stage[1].change(stage[1].core.members.with_voter(stage[2].member))
    for _ in range(3):
        stage.beat(1, 2)
    assert stage[1].core.is_leader
    assert stage[1].core.commit_index == stage[1].core.log.last_index
