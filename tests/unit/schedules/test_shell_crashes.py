"""Schedules of a real broker on virtual time that dies again and again: each message comes once, none is early."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from penstock.features.schedules.leading import shard as schedule_shard
from penstock.features.schedules.messages import ScheduleOutcome, ScheduleRequest
from penstock.features.schedules.records import ScheduledMessage
from penstock.features.schedules.recurrence import Every
from penstock.testing import StoredMessage, VirtualBroker

SEEDS = range(5)


def new(number: int, due_ms: int, dice: Random) -> ScheduleRequest:
    key = dice.choice([None, b"a", b"b", b"c"])
    message = ScheduledMessage("orders", dice.choice([None, None, 0, 2]), key, b"%d" % number)
    return ScheduleRequest(message=message, due_ms=due_ms, id=f"client-{number}" if dice.random() < 0.3 else "")


def now_ms(broker: VirtualBroker) -> int:
    return int(broker.now.timestamp() * 1000)


def check_none_early(messages: list[StoredMessage]) -> None:
    for message in messages:
        due_ms = int(dict(message.headers)["penstock-due"] or b"")
        assert message.timestamp_ms >= due_ms, f"{message} is early by {due_ms - message.timestamp_ms} ms"


@pytest.mark.parametrize("seed", SEEDS)
def test_whenever_a_broker_dies_each_message_comes_once_and_none_early(seed: int) -> None:
    die_again_and_again(seed)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_many_brokers_that_die_bring_each_message_once_and_none_early() -> None:
    for seed in range(100, 400):
        print(f"seed {seed}")
        die_again_and_again(seed)


def die_again_and_again(seed: int) -> None:
    dice = Random(seed)
    with VirtualBroker(seed=seed) as broker:
        broker.create_topic("orders", partitions=3)
        added = 0
        for _ in range(12):
            news = [
                new(added + at, now_ms(broker) + dice.choice([0, 50, 500, 5_000, 40_000]), dice)
                for at in range(dice.randrange(1, 60))
            ]
            broker.call(lambda each, news=news: each.schedules.add(news))
            added += len(news)
            if dice.random() < 0.8:
                broker.advance(seconds=dice.choice([0.001, 0.012, 0.03, 0.1, 1.0]) * dice.random())
                broker.crash(keeps_unsynced=dice.random() < 0.5)
                broker.restart()
            elif dice.random() < 0.5:
                broker.restart()  # in good order
        broker.advance(seconds=120)
        messages = broker.messages("orders")
        check_none_early(messages)
        came = Counter(message.value for message in messages)
        assert came == Counter(b"%d" % number for number in range(added))
        stats = broker.call(lambda each: each.schedules.stats())
        assert (stats.pending, stats.failed) == (0, 0)


def test_far_and_recurring_ones_survive_crashes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.features.schedules.state._SNAPSHOT_CHANGES_MIN", 20)
    monkeypatch.setattr(schedule_shard, "_RECORDS_MIN", 60)
    monkeypatch.setattr(schedule_shard, "_PIECE", 20)
    dice = Random(5)
    with VirtualBroker(seed=5) as broker:
        broker.create_topic("orders")
        day_ms = 86_400_000
        begin_ms = now_ms(broker)
        news = [
            ScheduleRequest(
                message=ScheduledMessage("orders", 0, None, b"%d" % at), due_ms=begin_ms + dice.randrange(7 * day_ms)
            )
            for at in range(200)
        ]
        again = ScheduleRequest(
            message=ScheduledMessage("orders", 0, None, b"again"), rule=Every(day_ms, 0), id="again"
        )
        placed = broker.call(lambda each: each.schedules.add([*news, again]))
        fates = broker.call(lambda each: each.schedules.cancel([each.id for each in placed[:20]]))
        assert fates == [ScheduleOutcome.DONE] * 20
        for _ in range(8):
            broker.advance(hours=8)
            broker.crash(keeps_unsynced=dice.random() < 0.5)
            broker.restart()
            broker.advance(hours=16)
        messages = broker.messages("orders")
        check_none_early(messages)
        came = Counter(message.value for message in messages)
        assert came.pop(b"again") == 8
        assert came == Counter(b"%d" % at for at in range(20, 200))
        partition = broker._running().partition("__schedules", 0)
        assert partition.log.start_offset > 0, "the log was cut"
        shown = broker.call(lambda each: each.schedules.show("again"))
        assert shown.runs == 8


def test_the_same_seed_is_the_same_history() -> None:
    def history() -> str:
        dice = Random(3)
        with VirtualBroker(seed=3) as broker:
            broker.create_topic("orders", partitions=3)
            for _ in range(3):
                news = [new(at, now_ms(broker) + dice.randrange(2_000), dice) for at in range(30)]
                broker.call(lambda each, news=news: each.schedules.add(news))
                broker.advance(seconds=dice.random())
                broker.crash()
                broker.restart()
            broker.advance(seconds=10)
            return broker.fingerprint()

    assert history() == history()
