"""A real broker with schedules in it, for tests: alone on its node, on a disk in memory, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.virtual_time import ClockWithHands, surroundings

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.config.settings import ScheduleSettings
from penstock.consensus.controller import TopicSpec
from penstock.features.schedules.messages import PlacedSchedule, ScheduleRequest
from penstock.features.schedules.records import ScheduledMessage
from penstock.testing.files import MemoryFiles
from penstock.testing.reading import StoredMessage, read_committed

HOUR_MS = 3_600_000


class ScheduleHouse:
    """One node."""

    def __init__(self, files: MemoryFiles | None = None, *, shards: int = 2, **settings: Any) -> None:
        self.files = files or MemoryFiles()
        stands_on = surroundings(self.files)
        assert isinstance(stands_on.clock, ClockWithHands)
        self.clock = stands_on.clock
        config = BrokerConfig(
            node_id=1,
            data_dir=Path("/data"),
            schedules=ScheduleSettings(**{"partitions": shards, "retry_base_ms": 20, **settings}),
        )
        self.broker = Broker(config, stands_on)
        self.calendar = self.broker.schedules

    async def __aenter__(self) -> ScheduleHouse:
        await self.broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.broker.close()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    async def topic(self, name: str = "orders", partitions: int = 1, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        await self.broker.create_topic(TopicSpec(name=name, partitions=partitions, configs=named))

    async def add(self, value: str, delay_ms: int | None = 0, topic: str = "orders", **facts: Any) -> PlacedSchedule:
        message = ScheduledMessage(topic, facts.pop("partition", None), facts.pop("key", None), value.encode())
        due_ms = None if delay_ms is None else self.now_ms + delay_ms
        (placed,) = await self.calendar.add([ScheduleRequest(message=message, due_ms=due_ms, **facts)])
        return placed

    async def messages(self, topic: str = "orders") -> list[StoredMessage]:
        return await read_committed(self.broker, topic)

    async def values(self, topic: str = "orders") -> list[str]:
        return [(message.value or b"").decode() for message in await self.messages(topic)]

    async def await_values(self, *values: str, topic: str = "orders") -> list[StoredMessage]:
        """The messages of a topic as soon as there are so many, which have to be these."""
        async with asyncio.timeout(60):
            while len(await self.values(topic)) < len(values):  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)
        assert sorted(await self.values(topic)) == sorted(values)
        return await self.messages(topic)

    async def recorded(self, count: int) -> None:
        """Return once so many firings are recorded, each a moment after its message can be read."""
        await self.until(lambda: self.calendar.stats_here().fired_total >= count)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_so():  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)
