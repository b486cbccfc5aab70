"""The broker on virtual time that users get for their tests: time that is moved, and crashes that a seed repeats."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from penstock.errors import GroupNotFound
from penstock.features.messages.publishing import OutgoingMessage
from penstock.features.transactions.joint.publishing import Ticket, publish_into
from penstock.testing import BrokerDown, Fate, VirtualBroker


def values(messages: list) -> list[bytes]:
    return [message.value for message in messages]


def test_days_pass_at_once_and_retries_come_in_their_order() -> None:
    began = time.process_time()
    with VirtualBroker() as broker:
        for text in ("three days", "one day", "two days"):
            broker.publish("orders", text)
        for message, days in zip(broker.receive("orders", max_messages=3), (3, 1, 2), strict=True):
            assert broker.nack(message, delay_s=days * 86_400) == [Fate.DONE]
        came = []
        for _ in range(3):
            broker.advance(days=1)
            found = broker.receive("orders", max_messages=3)
            broker.ack(*found)
            came += values(found)
        assert came == [b"one day", b"two days", b"three days"]
        assert (broker.now.month, broker.now.day) == (11, 17)
    assert time.process_time() - began < 20


def test_leases_that_end_one_after_the_other_are_each_ended_at_their_time() -> None:
    with VirtualBroker() as broker:
        broker.create_topic("orders", configs={"queue.tries": "2"})
        broker.publish("orders", "shoes")
        broker.receive("orders", visibility_timeout_s=3_600)
        broker.advance(hours=2)
        (again,) = broker.receive("orders", visibility_timeout_s=3_600)
        assert again.delivery_count == 2
        broker.advance(hours=12)
        (letter,) = broker.dead_letters("orders")
        told = dict(letter.headers)
        hours = (int(told["penstock-dlq-time"]) - letter.timestamp_ms) / 3_600_000
        assert hours == pytest.approx(3, abs=0.01), "when its lease ended, not when somebody looked"


def test_a_message_of_three_days_later_comes_at_once_when_they_pass() -> None:
    began = time.process_time()
    with VirtualBroker() as broker:
        broker.publish_later("orders", "later", delay_s=3 * 86_400)
        cancelled = broker.publish_later("orders", "never", delay_s=3 * 86_400)
        broker.publish_later("orders", "soon", delay_s=60)
        due = broker.now + timedelta(days=3)
        broker.advance(days=2)
        assert values(broker.messages("orders")) == [b"soon"]
        assert broker.cancel(cancelled)
        assert not broker.cancel(cancelled)
        broker.crash()
        broker.restart()
        broker.advance(days=2)
        assert values(broker.messages("orders")) == [b"soon", b"later"]
        last = broker.messages("orders")[-1]
        assert 0 <= last.timestamp_ms - int(dict(last.headers)["penstock-due"]) < 100, "not when somebody looked"
        assert abs(last.timestamp_ms - due.timestamp() * 1000) < 200
        assert dict(last.headers)["penstock-schedule-id"].startswith(b"sched-0-")
    assert time.process_time() - began < 20


def test_an_extended_lease_and_a_released_one() -> None:
    with VirtualBroker() as broker:
        broker.publish("orders", "shoes")
        (message,) = broker.receive("orders", visibility_timeout_s=10)
        broker.extend(message, visibility_timeout_s=100)
        broker.advance(seconds=50)
        assert broker.receive("orders") == []
        assert broker.release(message) == [Fate.DONE]
        (again,) = broker.receive("orders")
        assert again.delivery_count == 1
        assert broker.reject(again, reason="no such thing") == [Fate.DONE]
        broker.advance(seconds=1)
        assert values(broker.dead_letters("orders")) == [b"shoes"]


def outcome_of(seed: int) -> tuple[list[bytes], int, str]:
    with VirtualBroker(seed=seed) as broker:
        broker.publish("orders", "safe")
        broker.receive("orders", visibility_timeout_s=3_600)
        for number in range(6):
            broker.publish_unconfirmed("orders", f"perhaps {number}")
        broker.crash()
        broker.restart()
        return values(broker.messages("orders")), broker.stats("orders").partitions[0].in_flight, broker.fingerprint()


def test_a_seed_repeats_a_crash_and_what_survived_it() -> None:
    outcomes = [outcome_of(seed) for seed in range(12)]
    assert outcomes == [outcome_of(seed) for seed in range(12)]
    survived = {len(found) for found, _, _ in outcomes}
    assert all(found[0] == b"safe" for found, _, _ in outcomes)
    assert len(survived) > 1, "some seeds lose what was not synced, others do not"
    assert {in_flight for _, in_flight, _ in outcomes} == {0, 1}, "a lease is not synced either"


def test_a_kill_loses_nothing_that_was_written() -> None:
    for seed in range(4):
        with VirtualBroker(seed=seed) as broker:
            broker.publish_unconfirmed("orders", "a")
            broker.publish("orders", "b")
            broker.receive("orders", max_messages=2, visibility_timeout_s=3_600)
            broker.crash(keeps_unsynced=True)
            broker.restart()
            assert values(broker.messages("orders")) == [b"a", b"b"]
            assert broker.receive("orders") == [], "both are leased"


def test_a_broker_that_is_down_says_so_and_time_goes_on() -> None:
    with VirtualBroker() as broker:
        broker.publish("orders", "shoes")
        broker.receive("orders", visibility_timeout_s=60)
        broker.crash(keeps_unsynced=True)
        with pytest.raises(BrokerDown, match="restart"):
            broker.receive("orders")
        before = broker.now
        broker.advance(hours=1)
        assert (broker.now - before).total_seconds() == pytest.approx(3_600, abs=0.01)
        broker.restart()
        (again,) = broker.receive("orders", wait_s=5)
        assert (again.value, again.delivery_count) == (b"shoes", 2)
        broker.restart()
        assert broker.lives == 3


def test_everything_else_is_a_call_away_transactions_too() -> None:
    with VirtualBroker() as broker:
        broker.publish("orders", "shoes")
        broker.create_topic("bills")
        (order,) = broker.receive("orders")
        name = broker.call(lambda real: real.joint.open(60_000)).id
        broker.call(
            lambda real: publish_into(real.ports, real.joint, Ticket(name), "bills", [OutgoingMessage(value=b"bill")])
        )
        broker.call(lambda real: real.queues.ack("default", [order.receipt], transaction=name))
        assert broker.messages("bills") == []
        broker.call(lambda real: real.joint.abort(name))
        assert broker.messages("bills") == []
        assert broker.ack(order) == [Fate.DONE]
        with pytest.raises(GroupNotFound):
            broker.stats("bills", "nobody")


def test_it_works_in_the_middle_of_another_event_loop() -> None:
    async def story() -> None:
        with VirtualBroker() as broker:
            broker.publish("orders", "shoes")
            await asyncio.sleep(0)
            broker.advance(days=1)
            assert values(broker.receive("orders", wait_s=1)) == [b"shoes"]
        await asyncio.sleep(0)

    asyncio.run(story())


def test_time_does_not_go_back() -> None:
    with VirtualBroker() as broker, pytest.raises(ValueError, match="back"):
        broker.advance(seconds=-1)
