"""The two tables of a joint transaction's rules are complete and lead nowhere they should not."""

from __future__ import annotations

from penstock.features.transactions.joint.states import (
    DECIDED,
    ENDED,
    TRANSITIONS,
    VERDICTS,
    Event,
    State,
    Step,
    Verdict,
)

STEP_OF = {
    Event.OPEN: {Step.OPEN},
    Event.COMMIT: {Step.COMMIT},
    Event.COMMIT_AGAIN: {Step.COMMIT},
    Event.ABORT: {Step.ABORT},
    Event.TIMEOUT: {Step.ABORT},
    Event.MARKED: {Step.FINISH},
    Event.EXPIRE: {Step.FORGET},
}


def test_every_event_has_a_verdict_in_every_state() -> None:
    assert set(VERDICTS) == set(Event)
    for event, verdicts in VERDICTS.items():
        assert set(verdicts) == set(State), event


def test_what_is_carried_out_leads_somewhere_and_nothing_else_does() -> None:
    for event, steps in STEP_OF.items():
        for state in State:
            is_possible = any(state in TRANSITIONS[step] for step in steps)
            assert (VERDICTS[event][state] is Verdict.DO) == is_possible, (event, state)


def test_a_decision_stands() -> None:
    after = {state: {moves[state] for moves in TRANSITIONS.values() if state in moves} for state in State}
    assert after[State.COMMITTING] == {State.COMMITTED}
    assert after[State.ABORTING] == {State.ABORTED}
    assert after[State.COMMITTED] == after[State.ABORTED] == {State.NONE}


def test_nobody_writes_into_what_is_not_open() -> None:
    assert [state for state, verdict in VERDICTS[Event.ENTER].items() if verdict is Verdict.DO] == [State.OPEN]


def test_nobody_waits_for_an_end_that_has_come() -> None:
    for state, verdict in VERDICTS[Event.RESULT].items():
        assert (verdict is Verdict.ANSWER) == (state in ENDED)
        assert (verdict is Verdict.WAIT) == (state in DECIDED or state is State.OPEN)


def test_only_the_same_commit_is_answered_twice() -> None:
    assert Verdict.ANSWER not in VERDICTS[Event.COMMIT].values()
    answered = {state for state, verdict in VERDICTS[Event.COMMIT_AGAIN].items() if verdict is Verdict.ANSWER}
    assert answered == {State.COMMITTING, State.COMMITTED}
