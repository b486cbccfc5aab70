"""The tables of transactions: nothing missing, nothing that contradicts itself."""

from __future__ import annotations

import pytest

from penstock.features.transactions.states import DECIDED, SUCCESSORS, VERDICTS, Event, State, Verdict


def test_every_event_and_every_state_has_its_row() -> None:
    assert set(VERDICTS) == set(Event)
    assert set(SUCCESSORS) == set(State)


@pytest.mark.parametrize("event", Event)
def test_only_what_cannot_happen_is_left_out(event: Event) -> None:
    left_out = set(State) - set(VERDICTS[event])
    if event is Event.TIMEOUT:
        assert left_out == set(State) - {State.ONGOING}
    elif event in (Event.COMMIT_AGAIN, Event.ABORT_AGAIN):
        assert left_out == {State.ONGOING}, "an open transaction has no epoch before that could be repeated"
    else:
        assert not left_out


def test_a_decision_can_only_be_completed() -> None:
    assert SUCCESSORS[State.PREPARE_COMMIT] == {State.COMPLETE_COMMIT}
    assert SUCCESSORS[State.PREPARE_ABORT] == {State.COMPLETE_ABORT}
    for event, row in VERDICTS.items():
        for state in DECIDED & set(row):
            assert row[state] not in (Verdict.DO, Verdict.TAKE_OVER), f"{event} would change what is decided"


def test_no_event_turns_a_commit_into_an_abort_or_back() -> None:
    for event in (Event.COMMIT, Event.COMMIT_AGAIN):
        assert VERDICTS[event][State.PREPARE_ABORT] is Verdict.REFUSE
        assert VERDICTS[event][State.COMPLETE_ABORT] is Verdict.REFUSE
    for event in (Event.ABORT, Event.ABORT_AGAIN):
        assert VERDICTS[event][State.PREPARE_COMMIT] is Verdict.REFUSE
        assert VERDICTS[event][State.COMPLETE_COMMIT] is Verdict.REFUSE
