"""A real broker with queues in it, for tests: alone on its node, on a disk in memory, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.virtual_time import surroundings

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.consensus.controller import TopicSpec
from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.features.queues.leases import LeasedRecord, PartitionLease
from penstock.records import Record, encode_batch
from penstock.testing.files import MemoryFiles


class QueueHouse:
    """One node. Publishing here goes to the partition itself; receiving is what is tested."""

    def __init__(self, files: MemoryFiles | None = None, **config: Any) -> None:
        self.files = files or MemoryFiles()
        self.broker = Broker(BrokerConfig(node_id=1, data_dir=Path("/data"), **config), surroundings(self.files))
        self.queues = self.broker.queues

    async def __aenter__(self) -> QueueHouse:
        await self.broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.broker.close()

    async def topic(self, name: str = "orders", partitions: int = 1, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        await self.broker.create_topic(TopicSpec(name=name, partitions=partitions, configs=named))

    def put(
        self, *values: str, partition: int = 0, topic: str = "orders", keys: Sequence[str | None] | None = None
    ) -> None:
        """Publish messages as one batch."""
        now_ms = self.broker.clock.now_ms()
        records = [
            Record(at, now_ms, key.encode() if key is not None else None, value.encode(), ())
            for at, (value, key) in enumerate(zip(values, keys or [None] * len(values), strict=True))
        ]
        batch = memoryview(encode_batch(records))
        self.broker.partition(topic, partition).append(batch, now_ms, is_durable=False)

    async def take(
        self, max_messages: int = 100, *, topic: str = "orders", group: str = "workers", **options: Any
    ) -> list[LeasedRecord]:
        """Receive, decoded."""
        options.setdefault("consumer", "ann")
        leases: list[PartitionLease] = await self.queues.receive(topic, group, max_messages=max_messages, **options)
        return [message for lease in leases for message in lease.messages()]

    async def line(self, length: int, group: str = "workers") -> None:
        """Return once so many wait at the only partition that there is."""
        (shard,) = list(self.queues.coordinator)
        while len(shard.room(group)) < length:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)  # and sleep

    async def ack(self, *messages: LeasedRecord, group: str = "workers") -> list[ReceiptOutcome]:
        verdicts = await self.queues.ack(group, [message.receipt for message in messages])
        return [verdict.fate for verdict in verdicts]

    async def nack(self, *messages: LeasedRecord, group: str = "workers", **options: Any) -> list[ReceiptOutcome]:
        verdicts = await self.queues.nack(group, [message.receipt for message in messages], **options)
        return [verdict.fate for verdict in verdicts]


def values(messages: Sequence[LeasedRecord]) -> list[str]:
    return [(message.value or b"").decode() for message in messages]
