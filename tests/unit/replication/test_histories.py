"""Truncation by epochs, told as stories: those that KIP-101 and KIP-279 were written for, and one of our own."""

from __future__ import annotations

from pathlib import Path

from penstock.partitions.replication.followers import NO_LIMIT, STOPPED, Followers, ReplicaAssignment
from penstock.partitions.replication.following import (
    GOOD,
    Append,
    BeginAt,
    FetchProblem,
    Following,
    Ignore,
    LeaderAnswer,
    LocalLog,
    LogPosition,
    Truncate,
    Wait,
    check_history,
    cut_at,
)
from penstock.storage.epochs import EpochStart, LeaderEpochs
from penstock.testing.files import MemoryFiles


def history(*starts: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs(MemoryFiles(), Path("/epochs"))
    for epoch, offset in starts:
        epochs.begin(epoch, offset)
    return epochs


def converge(leader: LeaderEpochs, leader_end: int, follower: LeaderEpochs, end: int) -> list[int]:
    """Where the follower cuts, round by round, until the leader finds its history good."""
    cuts = []
    for _ in range(20):
        history = check_history(LogPosition(end, follower.latest), leader, 0, leader_end)
        if history is GOOD:
            return cuts
        assert history.parting is not None
        end = cut_at(history.parting, follower, end)
        follower.cut(end)
        cuts.append(end)
    raise AssertionError("it never ends")


def test_a_follower_that_knows_an_old_watermark_keeps_what_its_leader_has() -> None:
    # KIP-101, first scenario: cutting to the watermark would lose what was acknowledged.
    assert converge(history((0, 0)), 2, history((0, 0)), 2) == []


def test_two_histories_of_the_same_length_part_where_the_epochs_do() -> None:
    # KIP-101, second scenario: both ends are at 2, and what is at 1 differs.
    assert converge(history((0, 0), (1, 1)), 2, history((0, 0)), 2) == [1]


def test_after_fast_elections_the_follower_steps_back_over_epochs_the_leader_never_saw() -> None:
    # KIP-279: the follower wrote in epoch 1 what nobody has, the leader went on in epoch 2 from elsewhere.
    assert converge(history((0, 0), (2, 5)), 9, history((0, 0), (1, 3)), 8) == [3]
    assert converge(history((0, 0), (2, 8), (4, 12)), 20, history((0, 0), (1, 5), (3, 9)), 15) == [9, 5]


def test_a_log_that_is_longer_in_the_same_epoch_is_cut_to_its_leader_s_end() -> None:
    assert converge(history((0, 0), (2, 4)), 6, history((0, 0), (2, 4)), 9) == [6]


def test_nothing_in_common_leaves_nothing() -> None:
    assert converge(history((5, 0)), 3, history((1, 0)), 7) == [0]


def local_of(epochs: LeaderEpochs, end: int, high_watermark: int = 0, start: int = 0) -> LocalLog:
    return LocalLog(start, end, high_watermark, epochs)


def answer(
    epoch: int, parting: EpochStart | None = None, problem: FetchProblem = FetchProblem.NONE, start: int = 0
) -> LeaderAnswer:
    return LeaderAnswer(epoch, problem, 0, start, 10, parting=parting)


def test_an_answer_is_taken_only_for_what_was_asked() -> None:
    epochs = history((0, 0))
    following = Following(2, 3)
    parting = EpochStart(0, 4)
    assert following.on_answer(answer(3, parting), local_of(epochs, 8)) == Ignore()
    following.ask(8, epochs)
    assert following.on_answer(answer(2, parting), local_of(epochs, 8)) == Ignore()
    assert following.on_answer(answer(3, parting), local_of(epochs, 9)) == Ignore()
    assert following.on_answer(answer(3, parting), local_of(epochs, 8)) == Truncate(4)


def test_a_delayed_parting_does_not_cut_what_came_since() -> None:
    # Asked at 8, answered late; meanwhile the log was cut and grew again with what is acknowledged by now.
    epochs = history((0, 0))
    following = Following(2, 3)
    following.ask(8, epochs)
    assert isinstance(following.on_answer(answer(3, EpochStart(0, 4)), local_of(epochs, 6)), Ignore)


def test_what_is_committed_is_not_cut_for_a_leader_that_lost_it_in_its_own_epoch() -> None:
    epochs = history((0, 0), (3, 5))
    following = Following(2, 3)
    following.ask(9, epochs)
    assert isinstance(following.on_answer(answer(3, EpochStart(3, 6)), local_of(epochs, 9, 8)), Wait)
    assert following.on_answer(answer(3, EpochStart(3, 6)), local_of(epochs, 9, 6)) == Truncate(6)


def test_an_unclean_leader_of_a_later_epoch_may_cut_what_was_committed() -> None:
    epochs = history((0, 0))
    following = Following(2, 4)
    following.ask(9, epochs)
    assert following.on_answer(answer(4, EpochStart(0, 6)), local_of(epochs, 9, 8)) == Truncate(6)


def test_a_follower_older_than_all_that_its_leader_has_begins_anew() -> None:
    epochs = history((0, 0))
    assert check_history(LogPosition(3, 0), history((0, 0)), 5, 9).problem is FetchProblem.TRIMMED
    following = Following(2, 4)
    following.ask(3, epochs)
    assert following.on_answer(answer(4, problem=FetchProblem.TRIMMED, start=5), local_of(epochs, 3)) == BeginAt(5)
    assert isinstance(following.on_answer(answer(4, problem=FetchProblem.TRIMMED, start=2), local_of(epochs, 3)), Wait)


def test_a_good_answer_is_appended() -> None:
    epochs = history((0, 0))
    following = Following(2, 0)
    following.ask(3, epochs)
    assert following.on_answer(LeaderAnswer(0, FetchProblem.NONE, 2, 1, 10), local_of(epochs, 3)) == Append(2, 1)


# -- who is in sync ----------------------------------------------------------------------------------------------------


def three(in_sync: tuple[int, ...] = (1, 2, 3), *, needed: int = 2, epoch_start: int = 0) -> Followers:
    return Followers(
        1,
        ReplicaAssignment((1, 2, 3), in_sync, 0),
        lambda node_id, epoch: True,
        min_in_sync=needed,
        epoch_start=epoch_start,
        lag_s=10.0,
        now=0.0,
    )


def test_the_watermark_waits_for_everybody_in_sync_and_for_nobody_else() -> None:
    followers = three((1, 2))
    assert followers.limit == -1
    followers.report(2, 0, 7, 5, 100, 0.0)
    assert followers.limit == 5
    followers.report(3, 0, 2, 2, 100, 0.0)
    assert followers.limit == 5


def test_the_last_replica_standing_commits_nothing() -> None:
    followers = three((1,))
    followers.report(2, 0, 50, 50, 100, 0.0)
    assert followers.is_short
    assert followers.limit == STOPPED
    followers.require(1)
    assert followers.limit == NO_LIMIT


def test_a_topic_cannot_need_more_replicas_than_it_has() -> None:
    followers = three((1, 2, 3), needed=5)
    for node_id in (2, 3):
        followers.report(node_id, 0, 4, 4, 4, 0.0)
    assert followers.limit == 4


def test_nobody_joins_before_the_leader_s_epoch_began() -> None:
    followers = three((1, 2), epoch_start=10)
    followers.report(3, 0, 9, 9, 12, 0.0)
    assert followers.propose(0, 5, 0.0) is None
    followers.report(3, 0, 10, 10, 12, 0.0)
    proposal = followers.propose(0, 5, 0.0)
    assert proposal is not None
    assert proposal.node_ids == (1, 2, 3)
    assert followers.maximal == (1, 2, 3)


def test_a_follower_that_is_not_heard_falls_out_after_a_while_and_only_then() -> None:
    followers = three()
    followers.report(2, 0, 10, 10, 10, 0.0)
    assert not followers.check_lag(10, 0, 0.0)
    assert not followers.check_lag(10, 0, 9.0)
    assert followers.check_lag(10, 0, 10.0)
    proposal = followers.propose(0, 0, 10.0)
    assert proposal is not None
    assert proposal.node_ids == (1, 2)
    assert followers.maximal == (1, 2, 3), "until it is answered, the one that falls out still counts"


def test_a_follower_of_a_quiet_partition_is_in_sync_for_ever_and_gets_its_time_when_something_is_written() -> None:
    followers = three()
    for node_id in (2, 3):
        followers.report(node_id, 0, 10, 10, 10, 0.0)
    assert not followers.check_lag(10, 10, 1_000.0)
    assert not followers.check_lag(11, 10, 1_001.0)
    assert not followers.check_lag(11, 10, 1_010.0)
    assert followers.check_lag(11, 10, 1_011.0)


def test_a_lost_answer_leaves_the_change_pending_until_metadata_comes() -> None:
    followers = three((1, 2))
    followers.report(2, 0, 10, 10, 10, 0.0)
    followers.report(3, 0, 10, 10, 10, 0.0)
    proposal = followers.propose(0, 10, 0.0)
    assert proposal is not None
    followers.lose(proposal)
    assert 3 in followers.maximal
    again = followers.propose(0, 10, 1.0)
    assert again is not None
    followers.refuse(again)
    assert 3 in followers.maximal, "an earlier copy may have been granted, or may be yet"
    followers.assign(ReplicaAssignment((1, 2, 3), (1, 2), 1), 2.0)
    assert followers.maximal == (1, 2)


def test_a_refused_change_is_over() -> None:
    followers = three((1, 2))
    followers.report(3, 0, 10, 10, 10, 0.0)
    proposal = followers.propose(0, 0, 0.0)
    assert proposal is not None
    followers.refuse(proposal)
    assert followers.maximal == (1, 2)


def test_what_an_earlier_life_tells_is_not_believed() -> None:
    followers = three()
    followers.report(2, 5, 3, 3, 10, 0.0)
    assert not followers.report(2, 4, 10, 10, 10, 0.0)
    assert not followers.report_stable(2, 4, 10, 10, 0.0)
    followers.report(3, 0, 10, 10, 10, 0.0)
    assert followers.limit == 3


def test_syncing_tells_nothing_of_what_was_not_fetched_from() -> None:
    followers = three()
    followers.report(2, 0, 5, 0, 10, 0.0)
    followers.report(3, 0, 10, 10, 10, 0.0)
    assert followers.report_stable(2, 0, 9, 10, 0.0)
    assert followers.limit == 5


def test_a_follower_that_has_less_than_it_said_has_to_go_until_it_has_it_again() -> None:
    followers = three()
    followers.report(2, 0, 10, 10, 10, 0.0)
    followers.report(3, 0, 10, 10, 10, 0.0)
    assert not followers.wants_change(10)
    followers.report(2, 1, 4, 4, 10, 0.0)
    assert followers.wants_change(10)
    proposal = followers.propose(0, 10, 0.0)
    assert proposal is not None
    assert proposal.node_ids == (1, 3)
    followers.assign(ReplicaAssignment((1, 2, 3), (1, 3), 1), 0.0)
    assert followers.propose(0, 10, 0.0) is None
    followers.report(2, 1, 10, 10, 10, 0.0)
    proposal = followers.propose(0, 10, 0.0)
    assert proposal is not None
    assert proposal.node_ids == (1, 2, 3)


def test_a_follower_that_cannot_write_has_to_go_until_it_reports_again() -> None:
    followers = three()
    followers.report(2, 3, 10, 10, 10, 0.0)
    assert not followers.give_up(2, 2), "an earlier life"
    assert followers.give_up(2, 3)
    proposal = followers.propose(0, 10, 0.0)
    assert proposal is not None
    assert proposal.node_ids == (1, 3)
    followers.assign(ReplicaAssignment((1, 2, 3), (1, 3), 1), 0.0)
    assert not followers.check_lag(10, 10, 5.0)
    followers.report(2, 3, 10, 10, 10, 6.0)
    assert followers.check_lag(10, 10, 6.0)


def test_who_lagged_is_not_taken_back_for_what_it_said_before() -> None:
    followers = three()
    followers.report(2, 0, 10, 10, 10, 0.0)
    followers.check_lag(12, 10, 0.0)
    assert followers.check_lag(12, 10, 10.0)
    followers.assign(ReplicaAssignment((1, 2, 3), (1,), 1), 10.0)
    assert not followers.check_lag(12, 10, 11.0)
    assert followers.propose(0, 10, 11.0) is None
    followers.report(2, 0, 12, 12, 12, 12.0)
    proposal = followers.propose(0, 10, 12.0)
    assert proposal is not None
    assert proposal.node_ids == (1, 2)
