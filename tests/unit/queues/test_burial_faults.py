"""Dead letters written while everything breaks: appends that fail before or after they are done, leaders that change,
a log that is trimmed. Every message that died is a dead letter once, unless it was gone before it could be written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.unit.queues.graveyard import kill_all, publish, records, run, running, until_none_dies

from penstock.broker.broker import Broker
from penstock.consensus.controller import TopicSpec
from penstock.errors import PenstockError, RequestTimedOut, UnknownTopic
from penstock.features.queues.core.messages import ReceiptOutcome
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
        self.late: list[asyncio.Future[Any]] = []  # appends on a long way
        real = broker.partitions.append

        async def arrive(*args: Any, **how: Any) -> None:
            await asyncio.sleep(random.choice([0.001, 0.01, 0.03]))
            with suppress(PenstockError):
                await real(*args, **how)

        async def append(topic: str, *args: Any, **how: Any) -> Any:
            if topic != "t.dlq":
                return await real(topic, *args, **how)
            await asyncio.sleep(random.choice([0, 0, 0.003]))
            if random.random() < self.trouble / 2:
                raise UnknownTopic("It did not arrive.")
            if random.random() < self.trouble / 2:
                self.late.append(asyncio.ensure_future(arrive(topic, *args, **how)))
                raise RequestTimedOut("It has not arrived yet.")
            appended = await real(topic, *args, **how)
            if random.random() < self.trouble:
                raise RequestTimedOut("The answer was lost.")
            return appended

        broker.partitions.append = append  # type: ignore[method-assign]

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
                told = self.died if verdict.error is None and verdict.fate is ReceiptOutcome.DONE else self.perhaps
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
        await coordinator.await_shard_at(("t", 0))

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
            await asyncio.gather(*told.late)
            found = Counter(int(record.value or b"") for record in await records(broker, "t.dlq"))
            assert max(found.values()) == 1, [offset for offset, count in found.items() if count > 1]
            assert {offset for offset in told.died if offset >= told.start} <= found.keys()
            assert found.keys() <= told.died | told.perhaps

    run(story())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_write_that_comes_late_is_not_repeated_though_a_part_of_it_is_gone(is_first: bool) -> None:
    """Retention removes messages whose dead letters are on their way, and these arrive when nobody expects them."""

    async def story() -> None:
        async with running(MemoryFiles()) as broker:
            await broker.create_topic(TopicSpec(name="t", partitions=1))
            await publish(broker, "t", *(b"%d" % at for at in range(10)))
            await kill_all(broker, "t", 1)
            real, late = broker.partitions.append, []

            async def append(topic: str, *args: Any, **how: Any) -> Any:
                if topic != "t.dlq":
                    return await real(topic, *args, **how)
                if not late:
                    late.append(lambda: real(topic, *args, **how))
                    await broker.trim("t", 0, 4)
                    raise RequestTimedOut("It has not arrived yet.")
                if is_first:
                    await late[0]()
                appended = await real(topic, *args, **how)
                with suppress(PenstockError):
                    await late[0]()
                return appended

            broker.partitions.append = append  # type: ignore[method-assign]
            leases = await broker.queues.receive("t", "g", consumer="c", max_messages=6)
            await broker.queues.reject("g", [message.receipt for lease in leases for message in lease.messages()])
            await until_none_dies(broker, "t")
            found = [int(record.value or b"") for record in await records(broker, "t.dlq")]
            assert found == ([0, 1, 2, 3, 4, 5, 6] if is_first else [0, 4, 5, 6])

    run(story())
