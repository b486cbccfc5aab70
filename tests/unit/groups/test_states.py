"""The two tables of a group's rules are complete and lead nowhere they should not."""

from __future__ import annotations

from penstock.features.groups.states import TRANSITIONS, VERDICTS, GroupEvent, GroupState, GroupVerdict, RoundStep

WITH_MEMBERS = {GroupState.PREPARING, GroupState.COMPLETING, GroupState.STABLE}
NEEDS_NO_MEMBER = {GroupEvent.NEWCOMER, GroupEvent.LONE_COMMIT, GroupEvent.DELETE}


def test_every_event_has_a_verdict_in_every_state_it_can_happen_in() -> None:
    assert set(VERDICTS) == set(GroupEvent)
    for event, verdicts in VERDICTS.items():
        assert set(verdicts) == (set(GroupState) if event in NEEDS_NO_MEMBER else WITH_MEMBERS), event


def test_a_round_can_begin_wherever_a_verdict_asks_for_one() -> None:
    for event, verdicts in VERDICTS.items():
        for state, verdict in verdicts.items():
            assert verdict is not GroupVerdict.BEGIN or state in TRANSITIONS[RoundStep.BEGIN], (event, state)


def test_nobody_waits_where_nothing_would_end_the_wait() -> None:
    for verdicts in VERDICTS.values():
        for state, verdict in verdicts.items():
            assert verdict is not GroupVerdict.WAIT or state in {GroupState.PREPARING, GroupState.COMPLETING}


def test_a_generation_is_reached_only_through_a_round() -> None:
    assert set(TRANSITIONS) == set(RoundStep)
    assert TRANSITIONS[RoundStep.JOINED] == {GroupState.PREPARING: GroupState.COMPLETING}
    assert set(TRANSITIONS[RoundStep.BEGIN].values()) == {GroupState.PREPARING}
    assert set(TRANSITIONS[RoundStep.EMPTIED].values()) == {GroupState.EMPTY}
    assert set(TRANSITIONS[RoundStep.ASSIGNED].values()) == {GroupState.STABLE}
    assert GroupState.PREPARING not in TRANSITIONS[RoundStep.ASSIGNED]


def test_every_state_can_be_left_for_every_other() -> None:
    reached = {state: {after[state] for after in TRANSITIONS.values() if state in after} for state in GroupState}
    for start in GroupState:
        seen, todo = {start}, [start]
        while todo:
            new = reached[todo.pop()] - seen
            seen |= new
            todo += new
        assert seen == set(GroupState), start
