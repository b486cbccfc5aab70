"""What callers are told of receipts."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from penstock.api.queues import Receive
from penstock.errors import InvalidRequest, NotCoordinator
from penstock.features.queues.core.messages import ReceiptOutcome, ReceiptPart
from penstock.features.queues.leases import LeasedRecord, SettledReceipt
from penstock.operations.queues import is_done, message_view, results_of, start_of
from penstock.partitions.access import SinceTime


def told(verdict: SettledReceipt) -> dict[str, object]:
    (result,) = results_of([verdict], "/v1/queues/t/ack")
    found: dict[str, object] = msgspec.to_builtins(result)
    return found


def test_what_was_done_is_told_in_a_word() -> None:
    verdict = SettledReceipt("t:0:1:1:x", (ReceiptPart(1, 1, ReceiptOutcome.DONE),))
    assert is_done(verdict)
    assert told(verdict) == {"receipt": "t:0:1:1:x", "status": "done"}


@pytest.mark.parametrize("fate", [fate for fate in ReceiptOutcome if fate is not ReceiptOutcome.DONE])
def test_whatever_else_became_of_a_receipt_is_explained(fate: ReceiptOutcome) -> None:
    verdict = SettledReceipt("r", (ReceiptPart(1, 1, fate),))
    assert not is_done(verdict)
    assert told(verdict)["status"] == fate.value
    assert str(told(verdict)["detail"]).endswith(".")


def test_a_receipt_of_neighbours_that_fared_differently_has_parts() -> None:
    verdict = SettledReceipt(
        "r", (ReceiptPart(1, 4, ReceiptOutcome.DONE), ReceiptPart(5, 5, ReceiptOutcome.ALREADY_ACKED))
    )
    assert told(verdict)["status"] == "already_acked"
    assert told(verdict)["parts"] == [
        {"first": 1, "last": 4, "status": "done"},
        {"first": 5, "last": 5, "status": "already_acked"},
    ]


def test_a_receipt_nothing_is_known_of_has_failed_and_says_why() -> None:
    verdict = SettledReceipt("r", (), NotCoordinator("Nobody leads it."))
    assert not is_done(verdict)
    answer = told(verdict)
    assert answer["status"] == "failed"
    assert isinstance(answer["error"], dict)
    assert (answer["error"]["code"], answer["error"]["retriable"]) == ("not_coordinator", True)


def test_a_receipt_that_is_none_is_malformed() -> None:
    assert told(SettledReceipt("nonsense"))["status"] == "malformed"


def test_a_message_is_told_with_its_lease() -> None:
    message = LeasedRecord("r", "t", 2, 7, b"k", b"\xff", (("h", b"v"),), 1_000, 3, 2_000)
    assert msgspec.to_builtins(message_view(message)) == {
        "receipt": "r",
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "key": "k",
        "value_base64": "/w==",
        "headers": {"h": "v"},
        "timestamp": "1970-01-01T00:00:01Z",
        "delivery_count": 3,
        "lease_until": "1970-01-01T00:00:02Z",
    }


def test_an_empty_request_is_a_request() -> None:
    request = msgspec.json.decode(b'{"topic": "t"}', type=Receive)
    assert (request.group, request.max, request.wait_ms, request.visibility_timeout_ms) == ("default", 10, 0, None)


def test_a_start_is_an_offset_or_an_instant_but_not_both() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert start_of("latest", None) == "latest"
    assert start_of(None, moment) == SinceTime(1_767_225_600_000)
    assert start_of(None, None) is None
    with pytest.raises(InvalidRequest):
        start_of(0, moment)
