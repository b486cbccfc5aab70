"""Verdicts on receipts as the definitions tell them."""

from __future__ import annotations

import pytest

from penstock.doors.grpc.settling import OUTCOMES, results_of
from penstock.errors import NotLeader
from penstock.features.queues.core.messages import ReceiptOutcome, ReceiptPart
from penstock.features.queues.leases import SettledReceipt
from penstock.grpc.generated.queues_pb2 import Outcome


@pytest.mark.parametrize("fate", list(ReceiptOutcome))
def test_every_fate_has_an_outcome_of_its_name(fate: ReceiptOutcome) -> None:
    assert Outcome.Name(OUTCOMES[fate]) == f"OUTCOME_{fate.name}"


def test_no_outcome_but_the_unknown_one_is_without_a_fate() -> None:
    assert set(Outcome.values()) - set(OUTCOMES.values()) == {Outcome.OUTCOME_UNSPECIFIED}


def test_a_single_message_has_no_parts_and_neighbours_have() -> None:
    single, several = results_of(
        [
            SettledReceipt("t:0:1:1:n", (ReceiptPart(1, 1, ReceiptOutcome.DONE),)),
            SettledReceipt(
                "t:0:2-5:1:n", (ReceiptPart(2, 3, ReceiptOutcome.DONE), ReceiptPart(4, 5, ReceiptOutcome.LEASE_OVER))
            ),
        ]
    )
    assert (single.outcome, len(single.parts)) == (Outcome.OUTCOME_DONE, 0)
    assert several.outcome == Outcome.OUTCOME_LEASE_OVER
    assert [(part.first_offset, part.last_offset, part.outcome) for part in several.parts] == [
        (2, 3, Outcome.OUTCOME_DONE),
        (4, 5, Outcome.OUTCOME_LEASE_OVER),
    ]


def test_of_what_nothing_is_known_the_error_is_told() -> None:
    (result,) = results_of([SettledReceipt("t:0:1:1:n", (), NotLeader("It moved."))])
    assert result.outcome == Outcome.OUTCOME_UNSPECIFIED
    assert (result.error.code, result.error.retriable) == ("not_leader", True)


def test_what_is_no_receipt_is_malformed() -> None:
    (result,) = results_of([SettledReceipt("nonsense")])
    assert result.outcome == Outcome.OUTCOME_MALFORMED
