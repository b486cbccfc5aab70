"""The tables of transactions: nothing missing, nothing that contradicts itself."""

from __future__ import annotations

import pytest

from penstock.features.transactions.states import (
    DECIDED,
    SUCCESSORS,
    VERDICTS,
    TransactionEvent,
    TransactionState,
    TransactionVerdict,
)


def test_every_event_and_every_state_has_its_row() -> None:
    assert set(VERDICTS) == set(TransactionEvent)
    assert set(SUCCESSORS) == set(TransactionState)


@pytest.mark.parametrize("event", TransactionEvent)
def test_only_what_cannot_happen_is_left_out(event: TransactionEvent) -> None:
    left_out = set(TransactionState) - set(VERDICTS[event])
    if event is TransactionEvent.TIMEOUT:
        assert left_out == set(TransactionState) - {TransactionState.ONGOING}
    elif event in (TransactionEvent.COMMIT_AGAIN, TransactionEvent.ABORT_AGAIN):
        assert left_out == {TransactionState.ONGOING}, "an open transaction has no epoch before that could be repeated"
    else:
        assert not left_out


def test_a_decision_can_only_be_completed() -> None:
    assert SUCCESSORS[TransactionState.PREPARE_COMMIT] == {TransactionState.COMPLETE_COMMIT}
    assert SUCCESSORS[TransactionState.PREPARE_ABORT] == {TransactionState.COMPLETE_ABORT}
    for event, row in VERDICTS.items():
        for state in DECIDED & set(row):
            assert row[state] not in (TransactionVerdict.DO, TransactionVerdict.TAKE_OVER), (
                f"{event} would change what is decided"
            )


def test_no_event_turns_a_commit_into_an_abort_or_back() -> None:
    for event in (TransactionEvent.COMMIT, TransactionEvent.COMMIT_AGAIN):
        assert VERDICTS[event][TransactionState.PREPARE_ABORT] is TransactionVerdict.REFUSE
        assert VERDICTS[event][TransactionState.COMPLETE_ABORT] is TransactionVerdict.REFUSE
    for event in (TransactionEvent.ABORT, TransactionEvent.ABORT_AGAIN):
        assert VERDICTS[event][TransactionState.PREPARE_COMMIT] is TransactionVerdict.REFUSE
        assert VERDICTS[event][TransactionState.COMPLETE_COMMIT] is TransactionVerdict.REFUSE
