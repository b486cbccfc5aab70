"""When the disk fails or is slow, clients are told the truth about their messages; and the node keeps its signals."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import alone
from penstock.doors.rest import HttpConfig, HttpServer
from penstock.errors import DiskFull
from penstock.operations.services import Services

from .conftest import OpenDoor, calm


class _NeverSyncs:
    def request(self, log: object) -> None:
        pass


def test_a_message_not_committed_in_time_is_told_to_be_uncertain(open_door: OpenDoor) -> None:
    door = open_door(
        HttpConfig(port=0, publish_timeout_ms=50),
        partitions=calm(fsync_interval_ms=600_000),
    )
    door.client.post("/v1/topics", json={"name": "t", "partitions": 1})

    def stall(broker: Broker) -> None:
        broker.partition("t", 0)._syncer = _NeverSyncs()

    door.look(stall)
    answer = door.client.post("/v1/topics/t/publish", json={"value": "x"})
    assert (answer.status_code, answer.json()["code"]) == (504, "request_timed_out")
    assert "may make it appear twice" in answer.json()["detail"]
    assert door.client.get("/v1/topics/t/messages").json()["messages"] == [], "what is not committed is not shown"


def test_a_full_disk_stops_the_rest_of_its_partition_and_nothing_else(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = open_door()
    door.client.post("/v1/topics", json={"name": "t", "partitions": 2, "configs": {"max.message.bytes": 1000}})
    log = door.broker.partition("t", 0).log
    appended = 0

    def append(*args: Any) -> int:
        nonlocal appended
        appended += 1
        if appended == 2:
            raise DiskFull("No space is left.")
        return type(log).append(log, *args)

    monkeypatch.setattr(log, "append", append)
    messages = [{"value": "x" * 800, "partition": 0} for _ in range(3)] + [{"value": "y", "partition": 1}]
    answer = door.client.post("/v1/topics/t/batch", json={"messages": messages})
    assert answer.status_code == 207
    results = answer.json()["results"]
    assert [item.get("offset") for item in results] == [0, None, None, 0]
    assert {item["error"]["status"] for item in results[1:3]} == {507}
    assert appended == 2, "a message behind the one that failed was tried"
    monkeypatch.undo()
    assert door.client.post("/v1/topics/t/publish", json={"value": "x", "partition": 0}).json()["offset"] == 1


def test_the_node_keeps_its_signals(tmp_path: Path) -> None:
    async def start_and_stop() -> None:
        broker = Broker(BrokerConfig(node_id=1, data_dir=tmp_path), alone(1))
        await broker.start()
        server = HttpServer(Services.of(broker), HttpConfig(port=0))
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        await server.start()
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        await server.stop()
        await server.stop()
        await broker.close()

    asyncio.run(start_and_stop())
