"""A queue, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.queues.desk import SECRET, START_MS, Desk, spans

from penstock.consensus.queue_config import QueueSettings
from penstock.errors import InvalidConfig, InvalidRequest
from penstock.features.queues.core.intervals import Interval
from penstock.features.queues.core.messages import (
    AckDeliveries,
    BeginQueue,
    ConfigureQueue,
    ConfirmDeadLetters,
    ExtendLeases,
    GrantLease,
    NackDeliveries,
    OfferedSpan,
    PauseQueue,
    PendingDeadLetter,
    ReceiptOutcome,
    ReceiptPart,
    SkipGaps,
)
from penstock.features.queues.core.queue import EXPIRED, GAVE_UP, Queue
from penstock.machines.messages import Request

# -- handing out -------------------------------------------------------------------------------------------------------


def test_messages_go_out_in_order_and_once() -> None:
    desk = Desk(end=10)
    assert spans(desk.receive(4)) == [(0, 3, 1)]
    assert spans(desk.receive(4, "ben")) == [(4, 7, 1)]
    assert spans(desk.receive(4)) == [(8, 9, 1)]
    assert desk.receive(4) == []


def test_what_does_not_fit_is_offered_again() -> None:
    desk = Desk(end=10)
    (offered,) = desk.queue.offer("ann", 10, desk.end, desk.now_ms)
    desk.ask(GrantLease(consumer="ann", offered=[offered._replace(last=2)]))
    assert spans(desk.receive(10)) == [(3, 9, 1)]


def test_an_offer_that_is_out_of_date_gives_nothing() -> None:
    desk = Desk(end=10)
    offered = desk.queue.offer("ann", 5, desk.end, desk.now_ms)
    desk.receive(3, "ben")
    assert desk.ask(GrantLease(consumer="ann", offered=offered)).deliveries == ()
    assert desk.ask(GrantLease(consumer="ann", offered=[OfferedSpan(0, 0, 2)])).deliveries == ()
    assert desk.ask(GrantLease(consumer="ann", offered=[OfferedSpan(5, 6, 2)])).deliveries == ()
    assert desk.ask(GrantLease(consumer="ann", offered=[OfferedSpan(5, 4, 1)])).deliveries == ()
    twice = desk.ask(GrantLease(consumer="ann", offered=[OfferedSpan(5, 6, 1), OfferedSpan(6, 7, 1)]))
    assert twice.deliveries == (OfferedSpan(5, 6, 1),)


def test_due_retries_go_before_what_is_new() -> None:
    desk = Desk(end=10)
    first, second = desk.receive(2), desk.receive(2)
    desk.nack(*second, *first, delay_ms=0)
    assert spans(desk.receive(6)) == [(0, 3, 2), (4, 5, 1)]


def test_limits_hold_for_a_consumer_and_for_the_group() -> None:
    desk = Desk(end=100, in_flight_consumer_max=3, in_flight_group_max=5)
    mine = desk.receive(10)
    assert spans(mine) == [(0, 2, 1)]
    assert desk.receive(10) == []
    assert spans(desk.receive(10, "ben")) == [(3, 4, 1)]
    assert desk.receive(10, "cyd") == []
    desk.ack(mine[0]._replace(last=0))
    assert spans(desk.receive(10, "ann")) == [(5, 5, 1)]
    # An offer made before the limit was reached does not get round it.
    assert desk.ask(GrantLease(consumer="ann", offered=[OfferedSpan(50, 60, 1)])).deliveries == ()


def test_a_paused_group_gets_nothing_and_can_ack() -> None:
    desk = Desk()
    held = desk.receive(2)
    desk.ask(PauseQueue(True))
    assert desk.receive(2) == []
    assert desk.ack(*held) == [ReceiptOutcome.DONE]
    desk.fail_over()
    assert desk.queue.is_paused
    desk.ask(PauseQueue(False))
    assert spans(desk.receive(2)) == [(2, 3, 1)]


# -- receipts ----------------------------------------------------------------------------------------------------------


def test_a_receipt_that_a_power_cut_forgot_is_never_given_out_again() -> None:
    before, after = Desk(), Desk()
    after.queue = Queue("group", "orders", 0, QueueSettings(), era=1)
    after.ask(BeginQueue(0, SECRET))  # all that was synced
    (forgotten,) = before.receive(1)
    (fresh,) = after.receive(1)
    assert (forgotten.first, forgotten.delivery_count) == (fresh.first, fresh.delivery_count)
    assert forgotten.nonce != fresh.nonce
    assert after.ack(forgotten) != [ReceiptOutcome.DONE]
    assert after.ack(fresh) == [ReceiptOutcome.DONE]


def test_every_kind_of_bad_receipt_has_its_own_answer() -> None:
    desk = Desk()
    acked, expired, taken, rejected, live = (desk.receive(1)[0] for _ in range(5))
    desk.ack(acked)
    desk.nack(expired, delay_ms=5_000)
    desk.nack(taken, delay_ms=0)
    assert spans(desk.receive(1, "ben")) == [(2, 2, 2)]
    desk.reject(rejected)
    stranger = Desk(end=100)
    stranger.queue = Queue("other group", "orders", 0, QueueSettings())
    stranger.ask(BeginQueue(0, bytes(16)))
    for _ in range(5):
        (foreign,) = stranger.receive(1)
    forged = live._replace(nonce=live.nonce[:-1] + ("0" if live.nonce[-1] != "0" else "1"))
    answers = {
        acked: ReceiptOutcome.ALREADY_ACKED,
        expired: ReceiptOutcome.LEASE_OVER,
        taken: ReceiptOutcome.REDELIVERED,
        rejected: ReceiptOutcome.DEAD_LETTERED,
        forged: ReceiptOutcome.UNKNOWN,
        foreign: ReceiptOutcome.UNKNOWN,
        live._replace(delivery_count=2): ReceiptOutcome.UNKNOWN,
        live._replace(first=50, last=50): ReceiptOutcome.UNKNOWN,
        live._replace(partition=1): ReceiptOutcome.FOREIGN,
        live._replace(topic="bills"): ReceiptOutcome.FOREIGN,
    }
    before = len(desk.log)
    assert desk.ack(*answers) == list(answers.values())
    assert desk.nack(*answers) == list(answers.values())
    assert desk.extend(*answers) == list(answers.values())
    assert desk.reject(*answers) == list(answers.values())
    assert len(desk.log) == before, "nothing came of any of them"
    assert desk.ack(live, live) == [ReceiptOutcome.DONE, ReceiptOutcome.REPEATED]


def test_a_receipt_for_many_tells_what_became_of_each_part() -> None:
    desk = Desk()
    (whole,) = desk.receive(10)
    desk.ack(whole._replace(first=2, last=3))
    desk.nack(whole._replace(first=5, last=5))
    (parts,) = desk.ask(AckDeliveries([whole._replace(last=12)])).receipts
    assert parts == (
        ReceiptPart(0, 1, ReceiptOutcome.DONE),
        ReceiptPart(2, 3, ReceiptOutcome.ALREADY_ACKED),
        ReceiptPart(4, 4, ReceiptOutcome.DONE),
        ReceiptPart(5, 5, ReceiptOutcome.LEASE_OVER),
        ReceiptPart(6, 9, ReceiptOutcome.DONE),
        ReceiptPart(10, 12, ReceiptOutcome.UNKNOWN),
    )
    assert desk.queue.committed == 5


def test_receipts_of_neighbours_are_one_record() -> None:
    desk = Desk(end=1_000)
    (whole,) = desk.receive(500)
    singles = [whole._replace(first=at, last=at) for at in range(500)]
    before = len(desk.log)
    assert desk.ack(*singles) == [ReceiptOutcome.DONE] * 500
    assert len(desk.log) == before + 1
    assert len(desk.log[-1].value or b"") < 20
    assert desk.queue.committed == 500


def test_a_range_without_end_costs_nothing() -> None:
    desk = Desk()
    (held,) = desk.receive(3)
    (parts,) = desk.ask(AckDeliveries([held._replace(first=1, last=2**63 - 1)])).receipts
    assert parts == (ReceiptPart(1, 2, ReceiptOutcome.DONE), ReceiptPart(3, 2**63 - 1, ReceiptOutcome.UNKNOWN))


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_lease_ends_at_its_time_and_not_before() -> None:
    desk = Desk(end=5)
    (old,) = desk.receive(5)
    assert desk.queue.wake_ms == START_MS + 30_000
    desk.wait(29_999)
    assert desk.receive(5) == []
    desk.wait(1)
    assert spans(desk.receive(5)) == [(0, 4, 2)]
    assert desk.ack(old) == [ReceiptOutcome.REDELIVERED]


def test_what_was_acked_in_time_does_not_come_back() -> None:
    desk = Desk(end=5)
    (held,) = desk.receive(5, timeout_ms=1_000)
    desk.ack(held._replace(first=1, last=2), held._replace(first=4, last=4))
    desk.wait(1_000)
    assert spans(desk.receive(5)) == [(0, 0, 2), (3, 3, 2)]


def test_a_lease_can_be_extended_in_parts_and_shortened() -> None:
    desk = Desk(end=6)
    (held,) = desk.receive(6)
    desk.extend(held._replace(last=1), timeout_ms=60_000)
    desk.extend(held._replace(first=4), timeout_ms=10)
    desk.wait(10)
    assert spans(desk.receive(6, timeout_ms=100_000)) == [(4, 5, 2)]
    desk.wait(29_990)
    assert spans(desk.receive(6, timeout_ms=100_000)) == [(2, 3, 2)]
    desk.wait(30_000)
    assert spans(desk.receive(6)) == [(0, 1, 2)]


def test_an_ack_that_comes_late_counts_until_somebody_noticed() -> None:
    desk = Desk(end=1)
    (held,) = desk.receive(1)
    desk.now_ms += 31_000
    assert desk.ack(held) == [ReceiptOutcome.DONE]
    desk.wait(0)
    assert desk.queue.committed == 1


def test_without_retries_the_first_failure_makes_a_dead_letter() -> None:
    desk = Desk(end=2)
    desk.ask(ConfigureQueue({"max.retries": "0"}))
    first, second = desk.receive(1), desk.receive(1)
    desk.nack(*first)
    assert [letter.first for letter in desk.queue.dead_letters()] == [0]
    desk.wait(30_000)
    assert len(desk.queue.dead_letters()) == len([*first, *second])
    desk.wait(3_600_000)
    assert desk.receive(2) == []


def test_retries_wait_longer_each_time_up_to_a_cap() -> None:
    desk = Desk(end=1, tries=0, retry_cap_ms=5_000)
    waits = []
    for _ in range(6):
        (held,) = desk.receive(1)
        desk.nack(held)
        waits.append(desk.queue.wake_ms - desk.now_ms)
        desk.wait(int(waits[-1]) - 1)
        assert desk.receive(1) == []
        desk.wait(1)
    assert waits == [1_000, 2_000, 4_000, 5_000, 5_000, 5_000]


def test_a_delay_of_ones_own_takes_the_place_of_the_backoff() -> None:
    desk = Desk(end=1)
    desk.nack(*desk.receive(1), delay_ms=3_600_000)
    desk.wait(3_599_999)
    assert desk.receive(1) == []
    desk.wait(1)
    assert spans(desk.receive(1)) == [(0, 0, 2)]


@pytest.mark.parametrize("timeout_ms", [-1, 0, 43_200_001, 2**70])
def test_timeouts_that_make_no_sense_are_refused(timeout_ms: int) -> None:
    desk = Desk()
    (held,) = desk.receive(1)
    refused: list[Request[Any]] = [
        GrantLease(consumer="ann", offered=[OfferedSpan(1, 1, 1)], visibility_timeout_ms=timeout_ms),
        ExtendLeases([held], timeout_ms),
    ]
    for request in refused:
        with pytest.raises(InvalidRequest, match="between 1 and 43200000 ms"):
            desk.ask(request)


@pytest.mark.parametrize("delay_ms", [-1, 8 * 24 * 3_600_000])
def test_delays_that_make_no_sense_are_refused(delay_ms: int) -> None:
    desk = Desk()
    with pytest.raises(InvalidRequest, match="A delay is between 0 and"):
        desk.ask(NackDeliveries(desk.receive(1), delay_ms))


@pytest.mark.parametrize(
    "wrong",
    [
        {"visibility_timeout_ms": 0},
        {"visibility_timeout_ms": 10**12},
        {"tries": -1},
        {"retry_factor": 0.5},
        {"in_flight_group_max": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        QueueSettings(**wrong)


def test_a_lease_of_many_is_one_deadline() -> None:
    desk = Desk(end=1_000_000, in_flight_consumer_max=1_000_000)
    desk.receive(1_000_000)
    assert len(desk.queue._deliveries._ends) == 1
    assert desk.queue.row_count == 1


def test_deadlines_of_what_was_acked_are_forgotten() -> None:
    """Even if they are hours away."""
    desk = Desk(end=100_000)
    for _ in range(10_000):
        desk.ack(*desk.receive(1, timeout_ms=43_200_000))
    assert desk.queue.row_count == 0
    assert len(desk.queue._deliveries._ends) <= 1_100
    desk.receive(1, timeout_ms=1_000)
    desk.wait(1_000)
    assert spans(desk.receive(1)) == [(10_000, 10_000, 2)]


def test_many_leases_that_end_together_end_in_turns() -> None:
    desk = Desk(end=10_000, in_flight_consumer_max=10_000)
    for _ in range(5_000):
        desk.receive(1)
    desk.now_ms += 30_000
    (change,) = desk.queue.tick(desk.now_ms).changes
    desk.write([change])
    assert desk.queue.in_flight == 3_000
    assert desk.queue.wake_ms <= desk.now_ms
    desk.wait(0)
    assert desk.queue.in_flight == 0
    assert spans(desk.receive(10_000)) == [(0, 4_999, 2), (5_000, 9_999, 1)]


# -- dead letters ------------------------------------------------------------------------------------------------------


def test_after_the_last_try_a_message_becomes_a_dead_letter() -> None:
    desk = Desk(end=1)
    for delivery_count in (1, 2, 3):
        (held,) = desk.receive(1)
        assert held.delivery_count == delivery_count
        desk.nack(held, delay_ms=0)
    assert desk.receive(1) == []
    assert desk.queue.dead_letters() == [PendingDeadLetter(1, 0, 0, 3, GAVE_UP, 0)]
    desk.wait(10_000_000)
    assert desk.receive(1) == []
    assert desk.queue.committed == 0, "it is not done before it is written"
    desk.ask(ConfirmDeadLetters([1]))
    assert desk.queue.committed == 1
    assert desk.queue.dead_letters() == []


def test_consumers_that_vanish_use_up_the_tries_as_well() -> None:
    desk = Desk(end=3)
    for _ in range(3):
        desk.receive(3)
        desk.wait(30_000)
    assert desk.queue.dead_letters() == [PendingDeadLetter(1, 0, 2, 3, EXPIRED, 0)]


def test_rejected_neighbours_are_one_dead_letter() -> None:
    desk = Desk()
    one, two, three = (desk.receive(2)[0] for _ in range(3))
    desk.reject(three, one, reason="cannot be read")
    assert desk.queue.dead_letters() == [
        PendingDeadLetter(1, 0, 1, 1, "cannot be read", 0),
        PendingDeadLetter(2, 4, 5, 1, "cannot be read", 2),
    ]
    desk.reject(two, reason="")
    assert desk.queue.dead_letters()[2] == PendingDeadLetter(3, 2, 3, 1, "The consumer rejected it.", 4)


def test_a_dead_letter_keeps_its_number_across_a_crash_and_is_confirmed_once() -> None:
    desk = Desk()
    desk.reject(*desk.receive(2))
    before = desk.queue.dead_letters()
    desk.fail_over()
    assert desk.queue.dead_letters() == before
    desk.ask(ConfirmDeadLetters([1, 1, 7]))
    size = len(desk.log)
    desk.ask(ConfirmDeadLetters([1]))
    assert len(desk.log) == size
    desk.reject(*desk.receive(1))
    assert desk.queue.dead_letters() == [PendingDeadLetter(2, 2, 2, 1, "bad", 2)], "numbers are not used again"


def test_a_lease_that_was_to_end_twice_makes_one_dead_letter() -> None:
    desk = Desk(end=10, tries=1)
    (held,) = desk.receive(10)
    desk.extend(held, timeout_ms=10)
    for by_ms in (10, 30_000):  # somebody asks for messages before anybody ends the lease
        desk.now_ms += by_ms
        assert desk.queue.offer("ben", 1, desk.end, desk.now_ms) == []
    desk.wait(0)
    assert desk.queue.dead_letters() == [PendingDeadLetter(1, 0, 9, 1, EXPIRED, 0)]


def test_a_dead_letter_with_a_hole_comes_in_pieces_also_from_a_snapshot() -> None:
    desk = Desk()
    desk.reject(*desk.receive(5))
    desk.ask(SkipGaps([Interval(2, 2)]))
    pieces = [PendingDeadLetter(1, 0, 1, 1, "bad", 0), PendingDeadLetter(1, 3, 4, 1, "bad", 3)]
    assert desk.queue.dead_letters() == pieces
    desk.write([desk.queue.snapshot()])
    del desk.log[:-1]
    desk.fail_over()
    assert desk.queue.dead_letters() == pieces
    desk.ask(ConfirmDeadLetters([1]))
    assert desk.queue.committed == 5


def test_a_long_reason_is_cut() -> None:
    desk = Desk()
    desk.reject(*desk.receive(1), reason="x" * 5_000)
    assert len(desk.queue.dead_letters()[0].reason) == 1_000
