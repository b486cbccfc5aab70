"""Fetch sessions: only what changed is named, only what has news is answered, and nothing old is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.replication.stage import TOPIC_ID

from penstock.partitions.replication.messages import Added, Fetched, FetchReplica
from penstock.partitions.replication.sessions import FollowerSession, LeaderSession
from penstock.partitions.throttle import Throttle


def describe(key: str, slot: int) -> Added:
    return Added(slot, TOPIC_ID, ord(key[0]), 0, len(key), 0, 0)


def fetch_of(session: FollowerSession[str], node_epoch: int = 0) -> FetchReplica:
    named = session.begin(describe)
    return FetchReplica(node_epoch, session.session, session.number, 0, 1, -1, named.added, named.moved, named.dropped)


def test_a_partition_is_named_once_and_then_only_when_it_has_moved() -> None:
    session: FollowerSession[str] = FollowerSession(1)
    session.add("a")
    session.add("b")
    first = fetch_of(session)
    assert ([each.slot for each in first.added], first.moved) == ([0, 1], ())
    assert session.accept(Fetched(1, 0, is_known=True))
    session.touch("b")
    second = fetch_of(session)
    assert (second.number, second.added, [each.slot for each in second.moved]) == (1, (), [1])
    assert session.accept(Fetched(1, 1, is_known=True))
    third = fetch_of(session)
    assert (third.added, third.moved, third.dropped) == ((), (), ())


def test_a_partition_that_comes_again_has_a_slot_that_no_old_answer_names() -> None:
    session: FollowerSession[str] = FollowerSession(1)
    session.add("a")
    fetch_of(session)
    session.accept(Fetched(1, 0, is_known=True))
    session.drop("a")
    session.add("a")
    assert session.key(0) is None
    again = fetch_of(session)
    assert (again.dropped, [each.slot for each in again.added]) == ((0,), [1])


def test_what_the_leader_never_heard_of_is_not_dropped_there() -> None:
    session: FollowerSession[str] = FollowerSession(1)
    session.add("a")
    session.drop("a")
    assert fetch_of(session).dropped == ()


@pytest.mark.parametrize("answer", [Fetched(2, 0, True), Fetched(1, 1, True), Fetched(1, 0, False)])
def test_an_answer_to_anything_else_is_not_accepted(answer: Fetched) -> None:
    session: FollowerSession[str] = FollowerSession(1)
    session.add("a")
    fetch_of(session)
    assert not session.accept(answer)


def test_an_answer_is_accepted_once() -> None:
    session: FollowerSession[str] = FollowerSession(1)
    session.add("a")
    fetch_of(session)
    assert session.accept(Fetched(1, 0, True))
    assert not session.accept(Fetched(1, 0, True))


def test_a_restarted_session_names_everything_again() -> None:
    session: FollowerSession[str] = FollowerSession(1)
    for key in "abc":
        session.add(key)
    fetch_of(session)
    session.restart(2)
    again = fetch_of(session)
    assert (again.session, again.number, len(again.added)) == (2, 0, 3)


def test_a_leader_goes_on_only_where_it_stopped() -> None:
    held: LeaderSession[str] = LeaderSession(node_epoch=3, session=5)
    held.number = 7

    def fetch(epoch: int, session: int, number: int) -> FetchReplica:
        return FetchReplica(epoch, session, number, 0, 1, -1)

    assert held.is_next(fetch(3, 5, 8))
    for other in (fetch(3, 5, 7), fetch(3, 5, 9), fetch(3, 4, 8), fetch(2, 5, 8)):
        assert not held.is_next(other)
    assert held.is_newer(fetch(3, 6, 0))
    assert held.is_newer(fetch(4, 1, 0))
    for old in (fetch(3, 5, 0), fetch(3, 4, 0), fetch(2, 9, 0), fetch(4, 1, 1)):
        assert not held.is_newer(old)


def test_news_are_told_in_the_order_in_which_they_came() -> None:
    held: LeaderSession[str] = LeaderSession(0, 1)
    for slot in (3, 1, 2, 3):
        held.note(slot)
    assert held.news() == (3, 1, 2)
    held.settle(3)
    held.note(3)
    assert held.news() == (1, 2, 3)


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 500)), max_size=50))
def test_a_throttle_never_gives_more_than_its_rate_and_one_second_s_worth(steps: list[tuple[float, int]]) -> None:
    throttle, now, taken, largest = Throttle(100, 0.0), 0.0, 0, 0
    for pause, wanted in steps:
        now += pause
        if throttle.available(now) > 0:
            throttle.take(wanted)
            taken += wanted
            largest = max(largest, wanted)
    assert taken <= 100 * (now + 1) + largest


def test_a_throttle_that_is_off_limits_nothing() -> None:
    throttle = Throttle(0, 0.0)
    throttle.take(1 << 40)
    assert not throttle.is_on


def test_what_cannot_be_written_is_dropped_and_the_leader_is_told_why_once() -> None:
    session: FollowerSession[str] = FollowerSession(1)
    session.add("a")
    session.add("b")
    session.refuse("b")  # the leader never heard of it
    named = session.begin(describe)
    assert (named.dropped, named.refused) == ((), ())
    slot = session.slot("a")
    session.refuse("a")
    session.is_open = False
    named = session.begin(describe)
    assert (named.dropped, named.refused) == ((slot,), (slot,))
    session.is_open = False
    assert session.begin(describe).refused == ()
