"""What a subscriber holds is what it was sent and has not settled."""

from __future__ import annotations

from penstock.api.messages import instant
from penstock.api.problems import problem_of
from penstock.api.queues import QueueMessage, ReceiptResult
from penstock.doors.grpc.holdings import Holdings
from penstock.errors import NotLeader

NONCE, LATER = "1" + "0" * 16, "2" + "0" * 16


def receipt(offset: int | str, nonce: str = NONCE, count: int = 1, partition: int = 0) -> str:
    return f"t:{partition}:{offset}:{count}:{nonce}"


def message(offset: int, nonce: str = NONCE, count: int = 1, until_ms: int = 100) -> QueueMessage:
    return QueueMessage(
        receipt=receipt(offset, nonce, count),
        topic="t",
        partition=0,
        offset=offset,
        timestamp=None,
        delivery_count=count,
        lease_until=instant(until_ms),
    )


def done(text: str, status: str = "done") -> ReceiptResult:
    return ReceiptResult(receipt=text, status=status)


def test_what_is_settled_is_held_no_more() -> None:
    holdings = Holdings()
    holdings.add([message(1), message(2), message(3)], 0)
    holdings.settled([done(receipt(2))])
    assert holdings.receipts() == [receipt(1), receipt(3)]


def test_a_receipt_for_neighbours_settles_each() -> None:
    holdings = Holdings()
    holdings.add([message(1), message(2), message(5)], 0)
    holdings.settled([done(receipt("1-4"))])
    assert holdings.receipts() == [receipt(5)]


def test_a_huge_range_is_no_work() -> None:
    holdings = Holdings()
    holdings.add([message(1), message(7)], 0)
    holdings.settled([done(receipt(f"2-{(1 << 63) - 1}"))])
    assert holdings.receipts() == [receipt(1)]


def test_what_nothing_is_known_of_is_held_still() -> None:
    holdings = Holdings()
    holdings.add([message(1)], 0)
    holdings.settled(
        [
            ReceiptResult(receipt=receipt(1), status="failed", error=problem_of(NotLeader("moved"), "")),
            ReceiptResult(receipt="nonsense", status="malformed"),
        ]
    )
    assert len(holdings) == 1


def test_an_old_receipt_does_not_settle_a_later_delivery() -> None:
    holdings = Holdings()
    holdings.add([message(1)], 0)
    holdings.add([message(1, LATER, 2)], 0)
    holdings.settled([done(receipt(1), "redelivered")])
    assert holdings.receipts() == [receipt(1, LATER, 2)]


def test_leases_that_are_over_do_not_pile_up_but_extended_ones_stay() -> None:
    holdings = Holdings()
    holdings.add([message(0)], 0)
    holdings.extended([done(receipt(0))], 0)
    for begin in range(1, 100_001, 1_000):
        holdings.add([message(offset) for offset in range(begin, begin + 1_000)], 200)
    assert len(holdings) < 20_000
    assert receipt(0) in holdings.receipts()
