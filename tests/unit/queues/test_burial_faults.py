"""Burials while everything breaks: appends that fail before or after they are done, leaders that change, a log that is
trimmed. Every message that died is a dead letter once, unless it was gone before it could be written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from tests.unit.queues.graveyard import publish, records, run, running, until_none_dies

from penstock.broker.broker import Broker
from penstock.broker.queues.core.messages import Fate
from penstock.cluster.controller import TopicSpec
from penstock.errors import PenstockError, RequestTimedOut, UnknownTopic
from penstock.model import queue_state_topic
from penstock.testing.files import MemoryFiles

STEPS = 40


class Story:
    """One run of chance."""

    def __init__(self, broker: Broker, random: Random) -> None:
        self.broker = broker
        self.random = random
        self.trouble = 0.0
        self.died: set[int] = set()  # certainly
        self.perhaps: set[int] = set()  # nobody heard what became of it
        self.start = 0
        self.end = 0
        real = broker.remote.append

        async def append(topic: str, *args: Any, **how: Any) -> Any:
            if topic != "t.dlq":
                return await real(topic, *args, **how)
            await asyncio.sleep(random.choice([0, 0, 0.003]))
            if random.random() < self.trouble / 2:
                raise UnknownTopic("It did not arrive.")
            appended = await real(topic, *args, **how)
            if random.random() < self.trouble:
                raise RequestTimedOut("The answer was lost.")
            return appended

        broker.remote.append = append  # type: ignore[method-assign]

    async def reject(self) -> None:
        leases = await self.broker.queues.receive("t", "g", consumer="c", max_messages=self.random.randint(1, 6))
        messages = [message for lease in leases for message in lease.messages()]
        self.random.shuffle(messages)
        for message in messages:
            try:
                (verdict,) = await self.broker.queues.reject("g", [message.receipt])
            except PenstockError:
                self.perhaps.add(message.offset)
            else:
                told = self.died if verdict.error is None and verdict.fate is Fate.DONE else self.perhaps
                told.add(message.offset)

    async def publish(self) -> None:
        count = self.random.randint(1, 8)
        await publish(self.broker, "t", *(b"%d" % at for at in range(self.end, self.end + count)))
        self.end += count

    async def trim(self) -> None:
        if self.random.random() < 0.3 and self.end > self.start + 5:
            self.start = await self.broker.trim("t", 0, self.random.randint(self.start, self.end - 5))

    async def change_leader(self) -> None:
        """The queue is read from its log again, while who led it before is still at its work."""
        coordinator = self.broker.queues.coordinator
        coordinator.on_leadership_gained(self.broker.partition(queue_state_topic("t"), 0))
        await coordinator.await_shard("t", 0)

    async def change_luck(self) -> None:
        self.trouble = self.random.choice([0.0, 0.3, 0.8])


@pytest.mark.parametrize("seed", range(24))
def test_every_message_that_died_is_a_dead_letter_once(seed: int) -> None:
    async def story() -> None:
        async with running(MemoryFiles()) as broker:
            random = Random(seed)
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            told = Story(broker, random)
            await told.publish()
            await told.reject()
            for _ in range(STEPS):
                step = random.choice(
                    [
                        told.reject,
                        told.reject,
                        told.reject,
                        told.publish,
                        told.trim,
                        told.change_leader,
                        told.change_luck,
                    ]
                )
                await step()
                await asyncio.sleep(random.choice([0, 0, 0.005]))
            told.trouble = 0.0
            await until_none_dies(broker, "t")
            found = Counter(int(record.value or b"") for record in await records(broker, "t.dlq"))
            assert max(found.values()) == 1, [offset for offset, count in found.items() if count > 1]
            assert {offset for offset in told.died if offset >= told.start} <= found.keys()
            assert found.keys() <= told.died | told.perhaps

    run(story())
