"""Sessions of nodes, and which members vote."""

from __future__ import annotations

import pytest

from penstock.consensus.membership import NodeSessions, next_members
from penstock.consensus.raft.messages import Members


def test_a_new_controller_gives_every_node_a_whole_session() -> None:
    sessions = NodeSessions(2_000)
    sessions.begin([1, 2], now_ms=50_000, index=9)
    assert sessions.silent() == {1, 2}
    assert sessions.expired(50_900) == []
    assert sessions.renew(1, 51_000).must_have_applied == 9
    assert sessions.silent() == {2}
    assert sessions.expired(51_900) == []
    assert sessions.expired(52_000) == [2]
    assert sessions.expired(52_500) == [2], "until somebody has given it up"
    sessions.end(2)
    assert sessions.expired(52_900) == []
    assert sessions.expired(53_000) == [1]


def test_time_that_the_controller_slept_is_nobody_s_silence() -> None:
    sessions = NodeSessions(2_000)
    sessions.begin([1, 2], now_ms=0, index=0)
    assert sessions.expired(500) == []
    assert sessions.expired(60_500) == [], "a minute was lost, by this process"
    sessions.renew(1, 60_600)
    assert sessions.expired(61_000) == []
    assert sessions.expired(61_400) == []
    assert sessions.expired(61_500) == [2]


def test_a_node_is_let_in_when_it_knows_what_was_decided_about_it() -> None:
    sessions = NodeSessions(2_000)
    sessions.begin([1], now_ms=0, index=20)
    session = sessions.renew(1, 0)
    assert session.must_have_applied == 20
    sessions.require(1, 40)
    assert session.must_have_applied == 40
    sessions.end(1)
    assert sessions.renew(1, 10).must_have_applied == 40, "it was fenced at 40, and may not have heard of it"
    assert sessions.renew(2, 10).must_have_applied == 20


def test_a_node_whose_connection_broke_has_less_time() -> None:
    sessions = NodeSessions(2_000)
    sessions.begin([1, 2], now_ms=0, index=0)
    sessions.suspect(1, 100, 750)
    assert sessions.expired(850) == [1]
    sessions.end(1)
    sessions.suspect(2, 850, 750)
    sessions.renew(2, 1_000)
    assert sessions.expired(1_700) == []


def test_who_came_lately_and_who_goes() -> None:
    sessions = NodeSessions(2_000)
    sessions.renew(1, 100).is_leaving = True
    sessions.renew(2, 900)
    assert sessions.leaving() == {1}
    assert sessions.admitted_since(500) == {2}


@pytest.mark.parametrize(
    ("voters", "learners", "dead", "expected"),
    [
        pytest.param([1], [], [], None, id="alone"),
        pytest.param([1], [2], [], None, id="two are no safer than one"),
        pytest.param([1], [2, 3], [], [1, 2], id="the first of a pair"),
        pytest.param([1, 2], [3], [], [1, 2, 3], id="the second of a pair"),
        pytest.param([1, 2], [3], [3], None, id="not one that is away"),
        pytest.param([1, 2, 3], [4, 5], [], None, id="three are enough"),
        pytest.param([1, 2, 3], [4], [3], None, id="a dead one stays, and four are no safer"),
        pytest.param([1, 2, 3], [4, 5], [3], [1, 2, 3, 4], id="but five are"),
        pytest.param([1, 2, 3, 4], [5], [3], [1, 2, 3, 4, 5], id="so the fifth follows"),
    ],
)
def test_voters(voters: list[int], learners: list[int], dead: list[int], expected: list[int] | None) -> None:
    members = Members({one: f"d{one}" for one in voters}, {one: f"d{one}" for one in learners})
    step = next_members(members, 3, is_living=lambda one: one not in dead, is_ready=lambda one: one not in dead)
    assert (None if step is None else sorted(step.voters)) == expected
    if step is not None:
        members.check_step_to(step)
        assert step.voters.keys() | step.learners.keys() == members.voters.keys() | members.learners.keys()
