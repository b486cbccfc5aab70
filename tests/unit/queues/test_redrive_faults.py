"""Redrives while everything breaks: each dead letter that is meant goes back once, and no other does."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from tests.unit.queues.graveyard import kill_all, listed, publish, records, run, running, until

from penstock.broker.broker import Broker
from penstock.consensus.controller import TopicSpec
from penstock.errors import PenstockError, RequestTimedOut, UnknownTopic
from penstock.features.redrives.records import DeadLetterFilter
from penstock.machines.leaders import shard_of
from penstock.model import REDRIVES_TOPIC

MESSAGES = 60


def spoil_appends(broker: Broker, random: Random, luck: dict[str, float]) -> None:
    real = broker.partitions.append

    async def append(topic: str, *args: Any, **how: Any) -> Any:
        await asyncio.sleep(random.choice([0, 0, 0.002]))
        if random.random() < luck["bad"] / 2:
            raise RequestTimedOut("It did not arrive.")
        appended = await real(topic, *args, **how)
        if random.random() < luck["bad"]:
            raise RequestTimedOut("The answer was lost.")
        return appended

    broker.partitions.append = append  # type: ignore[method-assign]


async def change_leader(broker: Broker) -> None:
    """The ledger is read from its log again, while who led it before is still at its work."""
    partition = broker.partition(
        REDRIVES_TOPIC, shard_of("t.dlq", len(broker.metadata.topic(REDRIVES_TOPIC).partitions))
    )
    broker._redrives.on_leadership_gained(partition)
    await broker._redrives.await_shard("t.dlq")


async def is_idle(broker: Broker) -> bool:
    return all(job.state.is_over for job in await broker.dead_letters.redrives("t"))


@pytest.mark.parametrize("seed", range(12))
def test_every_dead_letter_that_is_meant_goes_back_once(seed: int) -> None:
    async def story() -> None:
        async with running() as broker:
            random, luck = Random(seed), {"bad": 0.0}
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            for begin in range(0, MESSAGES, 20):
                await publish(broker, "t", *(b"%d" % at for at in range(begin, begin + 20)))
                await kill_all(broker, "t", 20, f"reason {begin // 20}")
            await broker.dead_letters.redrive("t", DeadLetterFilter(reason="nothing"))
            spoil_appends(broker, random, luck)
            meant: set[str] = set()
            for _ in range(25):
                luck["bad"] = random.choice([0.0, 0.4])
                match random.randrange(4):
                    case 0 | 1:
                        reason = f"reason {random.randrange(2)}"
                        rate = random.choice([None, 300.0, 2_000.0])
                        try:
                            await broker.dead_letters.redrive("t", DeadLetterFilter(reason=reason), rate=rate)
                            meant.add(reason)
                        except PenstockError:
                            pass  # another one is under way
                    case 2:
                        await change_leader(broker)
                    case 3:
                        for job in await broker.dead_letters.redrives("t"):
                            if not job.state.is_over and random.random() < 0.3:
                                await broker.dead_letters.cancel("t", job.id)
                await asyncio.sleep(random.choice([0, 0.01, 0.03]))
            luck["bad"] = 0.0
            await until(lambda: is_idle(broker))
            for reason in sorted(meant):
                await broker.dead_letters.redrive("t", DeadLetterFilter(reason=reason))
                await until(lambda: is_idle(broker))
            back = Counter(int(record.value or b"") for record in (await records(broker, "t"))[MESSAGES:])
            expected = {at: 1 for at in range(MESSAGES) if f"reason {at // 20}" in meant}
            assert back == expected
            assert sum(job.moved for job in await broker.dead_letters.redrives("t")) == len(expected)
            dead = {int(each.record.value or b"") for each in await listed(broker, "t")}
            assert dead == set(range(MESSAGES)) - expected.keys()

    run(story())


def test_a_target_that_is_gone_is_not_waited_for() -> None:
    async def story() -> None:
        async with running() as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            await broker.create_topic(TopicSpec(name="other", partitions=1))
            await publish(broker, "t", b"a", b"b")
            await kill_all(broker, "t", 2)
            real = broker.partitions.append

            async def append(topic: str, *args: Any, **how: Any) -> Any:
                broker.partitions.append = real  # type: ignore[method-assign]
                await broker.delete_topic("other")
                raise UnknownTopic("It is gone.")

            broker.partitions.append = append  # type: ignore[method-assign]
            await broker.dead_letters.redrive("t", target="other")
            await until(lambda: is_idle(broker))
            (job,) = await broker.dead_letters.redrives("t")
            assert (job.moved, job.failed, job.error) == (0, 2, "It is gone.")

    run(story())
