"""Stories of elections: who may win one, what a vote is worth, and how nobody is disturbed by it."""

from __future__ import annotations

from functools import partial

from penstock.consensus.raft.core import Raft
from penstock.consensus.raft.messages import RaftMessage, RequestVote, TimeoutNow, VoteResponse
from penstock.errors import NotController
from sim.stage import Stage


def a_longer_log_of_an_older_term_does_not_win() -> None:
    """A leader that nobody hears writes much; the others go on without it and commit less, but later."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    for data in (b"a", b"b", b"c", b"d"):
        stage[1].propose(data)
    stage.elect(2, 3)
    stage[2].propose(b"x")
    stage.deliver(2, 3)
    assert stage[1].disk.last_index > stage[3].disk.last_index
    assert not stage.campaign(1, 3), "the longer log won, and it lacks what is committed"
    stage.elect(3, 1)
    stage.beat(3, 1)
    assert stage[1].applied == [b"x"]


def a_voter_votes_once_in_a_term() -> None:
    """Two candidates ask it at the same time."""
    stage = Stage(3)
    asks = [_ask_of_candidate(stage, node_id, 3) for node_id in (1, 2)]
    assert asks[0].term == asks[1].term
    for ask in asks:
        stage.hand(ask)
    stage.deliver(1, 3)
    stage.deliver(2, 3)
    assert stage[1].core.is_leader
    assert not stage[2].core.is_leader


def a_vote_outlives_a_crash() -> None:
    """A voter crashes after its vote has left, comes back, and is asked by another candidate of the same term."""
    stage = Stage(3)
    stage.hand(_ask_of_candidate(stage, 1, 3))
    (vote,) = stage.keep(VoteResponse, 3, 1)
    stage[3].restart()
    stage.campaign(2, 3, tries=1)
    stage.hand(vote)
    assert stage[1].core.is_leader
    assert not stage[2].core.is_leader


def a_vote_waits_for_the_disk() -> None:
    stage = Stage(3)
    stage[3].hold_disk()
    stage.campaign(1, 3)
    assert not stage[1].core.is_leader
    stage[3].release_disk()
    stage.deliver(1, 3)
    stage.elect(1, 3)


def one_that_was_away_disturbs_nobody() -> None:
    """It has all entries, only nobody told it for long that there is a leader. Its term must not have grown."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    term = stage[1].core.term
    for _ in range(40):
        stage.beat(1, 2)
        stage.tick(3)
        stage.drop()
    asks: list[RaftMessage] = []
    for _ in range(20):
        stage.beat(1, 2)
        stage.tick(3)
        asks = asks or stage.keep(RequestVote, 3, 1) + stage.keep(RequestVote, 3, 2)
    stage.drop()
    assert asks
    for ask in asks:
        stage.hand(ask)
    stage.deliver(1, 2, 3)
    assert stage[1].core.is_leader
    assert [stage[node_id].core.term for node_id in (1, 2, 3)] == [term] * 3


def a_candidate_of_old_does_not_unseat_a_leader() -> None:
    """Its request, of a later term, comes long after somebody else was elected."""
    stage = Stage(3)
    for _ in range(2):
        late = _ask_of_candidate(stage, 3, 2)
    stage.elect(1, 2)
    assert late.term > stage[1].core.term
    stage.hand(late)
    assert stage[2].core.term == stage[1].core.term
    stage.beat(1, 2)
    assert stage[1].core.is_leader


def a_leader_that_hears_nobody_gives_up() -> None:
    """And those who wait for it to confirm a read are told."""
    stage = Stage(3)
    stage.elect(1, 2, 3)
    stage[1].read(1)
    stage.drop()
    stage.pass_time(stage.pace.silence_ms)
    stage.tick(1)
    assert not stage[1].core.is_leader
    assert stage.oracles.reads_failed == 1


def leadership_goes_to_one_that_has_everything() -> None:
    stage = Stage(3)
    stage.elect(1, 2, 3)
    stage[1].propose(b"a")
    stage.deliver(1, 3)
    stage.drop()
    stage[1].act(partial(Raft.transfer, node_id=2))
    assert not stage.keep(TimeoutNow, 1, 2), "node 2 lacks an entry"
    try:
        stage[1].propose(b"b")
    except NotController:
        pass
    else:
        raise AssertionError("the successor will never be level while more is taken")
    stage.pass_time(stage.pace.heartbeat_ms)
    stage.tick(1)
    stage.deliver(1, 2, 3)
    assert stage[2].core.is_leader, "leadership was not handed over"
    assert not stage[1].core.is_leader


def an_heir_that_does_not_come_is_not_waited_for() -> None:
    stage = Stage(3)
    stage.elect(1, 2, 3)
    stage[2].crash()
    stage[1].act(partial(Raft.transfer, node_id=2))
    for _ in range(6):
        stage.beat(1, 3)
    stage[1].propose(b"a")
    stage.deliver(1, 3)
    assert stage[1].applied == [b"a"]


def _ask_of_candidate(stage: Stage, node_id: int, voter: int) -> RaftMessage:
    """A node wins its trial with a voter's help; what it then asks of that voter in earnest."""
    stage.stand(node_id)
    (trial,) = stage.keep(RequestVote, node_id, voter)
    stage.hand(trial)
    (answer,) = stage.keep(VoteResponse, voter, node_id)
    stage.hand(answer)
    (ask,) = stage.keep(RequestVote, node_id, voter)
    return ask
