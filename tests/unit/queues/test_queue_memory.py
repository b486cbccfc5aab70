"""What a queue remembers of a group: how far it is, and all of it after a failover, a refusal or a snapshot."""

from __future__ import annotations

import pytest
from tests.unit.queues.desk import SECRET, START_MS, Desk, spans

from penstock.errors import GroupNotFound, InvalidRequest
from penstock.features.queues.core.intervals import Interval
from penstock.features.queues.core.messages import (
    AckDeliveries,
    BeginQueue,
    ConfirmDeadLetters,
    ForgetQueue,
    GrantLease,
    OfferedSpan,
    PauseQueue,
    PurgeBefore,
    Receipt,
    ReceiptOutcome,
    SeekQueue,
    SkipGaps,
    TrimBefore,
)

# -- how far the group is ----------------------------------------------------------------------------------------------


def test_committed_is_the_end_of_the_longest_acked_prefix() -> None:
    desk = Desk()
    held = [desk.receive(1)[0] for _ in range(5)]
    seen = []
    for at in (1, 3, 0, 4, 2):
        desk.ack(held[at])
        seen.append(desk.queue.committed)
    assert seen == [0, 0, 2, 2, 5]
    assert desk.queue.row_count == 0


def test_offsets_without_messages_count_as_acked() -> None:
    desk = Desk(end=10)
    offered = desk.queue.offer("ann", 10, desk.end, desk.now_ms)
    assert offered == [OfferedSpan(0, 9, 1)]
    granted = desk.ask(
        GrantLease(
            consumer="ann", offered=[OfferedSpan(0, 2, 1), OfferedSpan(6, 9, 1)], gaps=[Interval(3, 5), Interval(4, 4)]
        )
    )
    assert len(desk.log) == 2, "one record for all of it"
    desk.ack(*(Receipt("orders", 0, *each, granted.nonce) for each in granted.deliveries))
    assert desk.queue.committed == 10
    desk.end = 20
    desk.ask(SkipGaps([Interval(10, 14)]))
    assert spans(desk.receive(10)) == [(15, 19, 1)]


def test_what_retention_removed_is_done_whatever_it_was() -> None:
    desk = Desk()
    (held,) = desk.receive(4)
    desk.reject(held._replace(last=0))
    desk.nack(held._replace(first=1, last=1))
    desk.ask(TrimBefore(3))
    assert desk.queue.committed == 3
    assert desk.queue.dead_letters() == []
    assert desk.queue.in_flight == 1
    assert desk.ack(held._replace(first=2, last=2)) == [ReceiptOutcome.ALREADY_ACKED]
    size = len(desk.log)
    desk.ask(TrimBefore(2))
    assert len(desk.log) == size


def test_a_purged_group_is_done_with_all_there_was() -> None:
    desk = Desk(end=10)
    (held,) = desk.receive(5)
    desk.ask(PurgeBefore(10))
    assert desk.queue.committed == 10
    assert desk.ack(held) == [ReceiptOutcome.ALREADY_ACKED]
    desk.end = 12
    assert spans(desk.receive(5)) == [(10, 11, 1)]


def test_a_group_that_seeks_reads_again_and_old_receipts_mean_nothing() -> None:
    desk = Desk(end=10)
    (held,) = desk.receive(5)
    desk.ack(held._replace(last=2))
    desk.ask(SeekQueue(1))
    assert desk.queue.committed == 1
    assert desk.ack(held._replace(first=3)) == [ReceiptOutcome.UNKNOWN]
    assert spans(desk.receive(5)) == [(1, 5, 1)]
    assert desk.ack(held._replace(first=3)) == [ReceiptOutcome.REDELIVERED]
    with pytest.raises(InvalidRequest):
        desk.ask(SeekQueue(-1))


def test_a_group_begins_once_where_it_is_told_and_can_be_forgotten() -> None:
    desk = Desk(end=10, start=7)
    desk.ask(BeginQueue(0, SECRET))
    (held,) = desk.receive(5)
    assert spans([held]) == [(7, 9, 1)]
    desk.ask(ForgetQueue())
    assert desk.queue.is_forgettable
    for request in (AckDeliveries([held]), PauseQueue(True), ConfirmDeadLetters([1])):
        with pytest.raises(GroupNotFound):
            desk.ask(request)
    with pytest.raises(GroupNotFound):
        desk.receive(1)
    desk.ask(BeginQueue(0, bytes(16)))
    assert desk.ack(held) == [ReceiptOutcome.UNKNOWN]


# -- what survives -----------------------------------------------------------------------------------------------------


def test_receipts_and_counts_survive_a_failover() -> None:
    desk = Desk(end=4)
    old = desk.receive(2)
    desk.nack(*old, delay_ms=0)
    held = desk.receive(4)
    assert spans(held) == [(0, 1, 2), (2, 3, 1)]
    desk.fail_over()
    assert desk.receive(4, "ben") == []
    assert desk.queue.held_by("ann") == 4
    assert desk.ack(held[0]) == [ReceiptOutcome.DONE]
    desk.wait(30_000)
    assert spans(desk.receive(4)) == [(2, 3, 2)]


@pytest.mark.parametrize("ahead_ms", [3_600_000, 50_000_000])
def test_a_clock_that_was_ahead_makes_no_lease_longer(ahead_ms: int) -> None:
    desk = Desk(end=2)
    desk.receive(1)
    desk.nack(*desk.receive(1))
    desk.fail_over(clock_ms=START_MS - ahead_ms)
    desk.wait(1_000)
    assert spans(desk.receive(2)) == [(1, 1, 2)]
    desk.wait(28_999)
    assert desk.receive(2) == []
    desk.wait(1)
    assert spans(desk.receive(1)) == [(0, 0, 2)]


def test_a_write_that_was_refused_did_not_happen() -> None:
    desk = Desk(end=2)
    (held,) = desk.receive(2)
    desk.queue.handle(AckDeliveries([held]), desk.now_ms, lambda _: None)
    assert desk.queue.committed == 0
    desk.now_ms += 30_000
    assert desk.queue.tick(desk.now_ms).changes
    assert desk.queue.wake_ms <= desk.now_ms, "the lease has still to be ended"
    desk.wait(0)
    assert spans(desk.receive(2)) == [(0, 1, 2)]


def test_a_snapshot_is_due_when_the_changes_outgrow_the_state() -> None:
    desk = Desk(end=100_000)
    asked = 0
    while not desk.queue.is_snapshot_due:
        desk.ack(*desk.receive(1))
        asked += 1
    assert 2_000 < asked < 4_000
    desk.write([desk.queue.snapshot()])
    assert not desk.queue.is_snapshot_due
    assert len(desk.log[-1].value or b"") < 60
    del desk.log[:-1]
    desk.fail_over()
    assert desk.queue.committed == asked


def test_a_snapshot_of_many_leases_is_small() -> None:
    desk = Desk(end=100_000, in_flight_consumer_max=100_000)
    for number in range(2_000):
        desk.now_ms += number % 3
        desk.receive(1, f"worker {number % 20}")
    assert len(desk.queue.snapshot().event.rows) == 12_000  # type: ignore[union-attr]
    desk.write([desk.queue.snapshot()])
    assert len(desk.log[-1].value or b"") < 2_000 * 8
