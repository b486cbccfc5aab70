"""The two tables of a group's rules are complete and lead nowhere they should not."""

from __future__ import annotations

from penstock.features.groups.states import TRANSITIONS, VERDICTS, Event, State, Step, Verdict

WITH_MEMBERS = {State.PREPARING, State.COMPLETING, State.STABLE}
NEEDS_NO_MEMBER = {Event.NEWCOMER, Event.LONE_COMMIT, Event.DELETE}


def test_every_event_has_a_verdict_in_every_state_it_can_happen_in() -> None:
    assert set(VERDICTS) == set(Event)
    for event, verdicts in VERDICTS.items():
        assert set(verdicts) == (set(State) if event in NEEDS_NO_MEMBER else WITH_MEMBERS), event


def test_a_round_can_begin_wherever_a_verdict_asks_for_one() -> None:
    for event, verdicts in VERDICTS.items():
        for state, verdict in verdicts.items():
            assert verdict is not Verdict.BEGIN or state in TRANSITIONS[Step.BEGIN], (event, state)


def test_nobody_waits_where_nothing_would_end_the_wait() -> None:
    for verdicts in VERDICTS.values():
        for state, verdict in verdicts.items():
            assert verdict is not Verdict.WAIT or state in {State.PREPARING, State.COMPLETING}


def test_a_generation_is_reached_only_through_a_round() -> None:
    assert set(TRANSITIONS) == set(Step)
    assert TRANSITIONS[Step.JOINED] == {State.PREPARING: State.COMPLETING}
    assert set(TRANSITIONS[Step.BEGIN].values()) == {State.PREPARING}
    assert set(TRANSITIONS[Step.EMPTIED].values()) == {State.EMPTY}
    assert set(TRANSITIONS[Step.ASSIGNED].values()) == {State.STABLE}
    assert State.PREPARING not in TRANSITIONS[Step.ASSIGNED]


def test_every_state_can_be_left_for_every_other() -> None:
    reached = {state: {after[state] for after in TRANSITIONS.values() if state in after} for state in State}
    for start in State:
        seen, todo = {start}, [start]
        while todo:
            new = reached[todo.pop()] - seen
            seen |= new
            todo += new
        assert seen == set(State), start
