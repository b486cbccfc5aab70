"""The benchmark's group members against a real door: they join, settle, notice who comes and goes, and leave."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.client import Numbers
from bench.groups import time_joins, watch_many
from bench.members import Manner

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import alone
from penstock.config.settings import GroupSettings
from penstock.consensus.controller import TopicSpec
from penstock.consensus.records import Endpoint
from penstock.doors.kafka.server import KafkaConfig, KafkaServer

MANNER = Manner(topic="t", partitions=6, heartbeat_s=0.05, session_ms=10_000)


def measure(directory: Path, work: Callable[[Any], Awaitable[Numbers]]) -> tuple[Numbers, list[str]]:
    """What the work says, and which groups still have members afterwards."""

    async def run() -> tuple[Numbers, list[str]]:
        endpoint = Endpoint(door="kafka", host="0.0.0.0", port=0)
        groups = GroupSettings(initial_delay_ms=100)
        config = BrokerConfig(node_id=1, data_dir=directory / "data", endpoints=(endpoint,), groups=groups)
        broker = Broker(config, alone(1))
        await broker.start()
        server = KafkaServer(broker, KafkaConfig(port=0))
        await server.start()
        try:
            await broker.create_topic(TopicSpec(name="t", partitions=6))
            process = SimpleNamespace(cpu_seconds=lambda: sum(os.times()[:2]))
            said = await work(SimpleNamespace(kafka_port=server.port, process=process))
            return said, [group.id for group in broker.groups.all_groups() if list(group.members)]
        finally:
            await server.stop(0.5)
            await broker.close()

    return asyncio.run(asyncio.wait_for(run(), 100))


def test_joins_in_a_settled_group_are_timed(tmp_path: Path) -> None:
    said, left = measure(tmp_path, lambda node: time_joins(node, MANNER, members=4, joins=2, limit_s=60))
    assert said["joins"] == 2
    assert 0 < said["p50_ms"] <= said["max_ms"] < 60_000
    assert left == []


def test_many_groups_are_watched_after_they_settled(tmp_path: Path) -> None:
    said, left = measure(tmp_path, lambda node: watch_many(node, MANNER, groups=3, members=2, steady_s=0.5, limit_s=60))
    assert (said["rebalances"], said["evictions"]) == (0, 0)
    assert said["heartbeats"] >= 6
    assert said["p99_ms"] > 0
    assert left == []
