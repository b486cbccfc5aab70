"""The two tables of a joint transaction's rules are complete and lead nowhere they should not."""

from __future__ import annotations

from penstock.features.transactions.joint.states import (
    DECIDED,
    ENDED,
    TRANSITIONS,
    VERDICTS,
    JointEvent,
    JointState,
    JointStep,
    JointVerdict,
)

STEP_OF = {
    JointEvent.OPEN: {JointStep.OPEN},
    JointEvent.COMMIT: {JointStep.COMMIT},
    JointEvent.COMMIT_AGAIN: {JointStep.COMMIT},
    JointEvent.ABORT: {JointStep.ABORT},
    JointEvent.TIMEOUT: {JointStep.ABORT},
    JointEvent.MARKED: {JointStep.FINISH},
    JointEvent.EXPIRE: {JointStep.FORGET},
}


def test_every_event_has_a_verdict_in_every_state() -> None:
    assert set(VERDICTS) == set(JointEvent)
    for event, verdicts in VERDICTS.items():
        assert set(verdicts) == set(JointState), event


def test_what_is_carried_out_leads_somewhere_and_nothing_else_does() -> None:
    for event, steps in STEP_OF.items():
        for state in JointState:
            is_possible = any(state in TRANSITIONS[step] for step in steps)
            assert (VERDICTS[event][state] is JointVerdict.DO) == is_possible, (event, state)


def test_a_decision_stands() -> None:
    after = {state: {moves[state] for moves in TRANSITIONS.values() if state in moves} for state in JointState}
    assert after[JointState.COMMITTING] == {JointState.COMMITTED}
    assert after[JointState.ABORTING] == {JointState.ABORTED}
    assert after[JointState.COMMITTED] == after[JointState.ABORTED] == {JointState.NONE}


def test_nobody_writes_into_what_is_not_open() -> None:
    assert [state for state, verdict in VERDICTS[JointEvent.ENTER].items() if verdict is JointVerdict.DO] == [
        JointState.OPEN
    ]


def test_nobody_waits_for_an_end_that_has_come() -> None:
    for state, verdict in VERDICTS[JointEvent.RESULT].items():
        assert (verdict is JointVerdict.ANSWER) == (state in ENDED)
        assert (verdict is JointVerdict.WAIT) == (state in DECIDED or state is JointState.OPEN)


def test_only_the_same_commit_is_answered_twice() -> None:
    assert JointVerdict.ANSWER not in VERDICTS[JointEvent.COMMIT].values()
    answered = {state for state, verdict in VERDICTS[JointEvent.COMMIT_AGAIN].items() if verdict is JointVerdict.ANSWER}
    assert answered == {JointState.COMMITTING, JointState.COMMITTED}
