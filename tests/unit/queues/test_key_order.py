"""Order of keys: one message of a key at a time, and a failure holds back nobody else."""

from __future__ import annotations

import tracemalloc

from tests.unit.queues.desk import Desk, spans

from penstock.consensus.queue_config import Order, QueueSettings
from penstock.features.queues.core.intervals import Interval
from penstock.features.queues.core.messages import ConfirmDeadLetters, SkipGaps, TrimBefore
from penstock.features.queues.leading.sources import label_of

A, B, C = 1, 2, 3


def keyed(*keys: int | None, **limits: object) -> Desk:
    return Desk(end=len(keys), keys=list(keys), order=Order.KEY, **limits)


def test_one_message_of_a_key_is_in_flight() -> None:
    desk = keyed(A, A, B, A, B, C)
    held = desk.receive(10)
    assert spans(held) == [(0, 0, 1), (2, 2, 1), (5, 5, 1)]
    assert desk.receive(10) == []
    desk.ack(held[0])
    assert spans(desk.receive(10)) == [(1, 1, 1)]
    desk.ack(held[1])
    assert spans(desk.receive(10)) == [(4, 4, 1)]


def test_a_message_without_a_key_waits_for_nobody() -> None:
    desk = keyed(None, None, A, None, A)
    assert spans(desk.receive(10)) == [(0, 3, 1)]


def test_a_failed_message_holds_back_its_key_alone() -> None:
    desk = keyed(A, B, A, B)
    (both,) = desk.receive(10)
    desk.nack(both._replace(last=0), delay_ms=60_000)
    desk.ack(both._replace(first=1))
    (other,) = desk.receive(10)
    assert spans([other]) == [(3, 3, 1)]
    desk.ack(other)
    assert desk.receive(10) == []
    desk.wait(60_000)
    (again,) = desk.receive(10)
    assert spans([again]) == [(0, 0, 2)]
    desk.ack(again)
    assert spans(desk.receive(10)) == [(2, 2, 1)]


def test_a_dead_letter_releases_its_key_once_it_is_written() -> None:
    desk = keyed(A, A)
    desk.reject(*desk.receive(10))
    assert desk.receive(10) == []
    desk.ask(ConfirmDeadLetters([1]))
    assert spans(desk.receive(10)) == [(1, 1, 1)]


def test_whoever_takes_over_looks_before_handing_out() -> None:
    desk = keyed(A, B, A, B, C)
    (held,) = desk.receive(2)
    desk.ack(held._replace(first=1))
    desk.fail_over()
    assert desk.queue.offer("ben", 10, desk.end, desk.now_ms) == [], "nothing is known of any key yet"
    assert spans(desk.receive(10, "ben")) == [(3, 4, 1)]
    desk.ack(held._replace(last=0))
    assert spans(desk.receive(10, "ben")) == [(2, 2, 1)]


def test_a_key_goes_on_over_messages_that_are_gone() -> None:
    desk = keyed(A, A, A, A, A)
    (held,) = desk.receive(1)
    desk.ask(SkipGaps([Interval(1, 2)]))
    desk.ack(held)
    (held,) = desk.receive(1)
    assert spans([held]) == [(3, 3, 1)]
    desk.ask(TrimBefore(4))
    assert spans(desk.receive(1)) == [(4, 4, 1)]


def test_no_more_is_looked_at_than_is_needed() -> None:
    desk = keyed(*range(10_000))
    assert desk.queue.unseen(10, desk.end) == Interval(0, 499)
    desk.receive(10)
    assert desk.queue.unseen(10, desk.end) is None
    assert desk.queue.unseen(1_000, desk.end) == Interval(500, 1_009)


def test_a_key_with_a_long_backlog_does_not_hide_the_others() -> None:
    desk = keyed(*[A] * 50_000, B)
    assert spans(desk.receive(10)) == [(0, 0, 1), (50_000, 50_000, 1)]


def test_looking_ahead_ends_when_too_many_are_held() -> None:
    desk = keyed(*[A] * 5_000, B, held_max=1_000)
    (held,) = desk.receive(10)
    assert spans([held]) == [(0, 0, 1)]
    while True:
        desk.ack(held)
        held, *others = desk.receive(10)
        if others:
            break
    assert spans(others) == [(5_000, 5_000, 1)]
    assert 3_000 < held.first < 4_100, "it was looked at as soon as there was room to remember what is before it"


def test_order_can_be_asked_for_while_messages_are_in_flight() -> None:
    desk = Desk(end=6, keys=[A, A, A, B, B, A])
    (held,) = desk.receive(3)
    desk.queue.configure(QueueSettings(order=Order.KEY))
    assert spans(desk.receive(10)) == [(3, 3, 1)]
    desk.nack(held._replace(first=1, last=1), delay_ms=0)
    assert desk.receive(10) == [], "an earlier one of its key is in flight"
    desk.ack(held._replace(last=0))
    assert spans(desk.receive(10)) == [(1, 1, 2)]
    desk.ack(held._replace(first=2))
    assert desk.receive(10) == []
    desk.queue.configure(QueueSettings())
    assert spans(desk.receive(10)) == [(4, 5, 1)]


def test_a_key_with_a_message_in_flight_takes_little_memory() -> None:
    count = 18_000
    queue = keyed().queue
    tracemalloc.start()
    for at in range(0, count, 500):
        queue.see(at, [label_of(b"%d" % offset) for offset in range(at, at + 500)])
    each_bytes = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    assert queue.unseen(count, count + 1) is None, "all of them lead their key"
    assert each_bytes < 110, "beside 65 for its lease: a million have to fit into 200 MB"
