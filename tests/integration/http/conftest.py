"""A broker over a temporary directory behind a real HTTP door on a real socket, in a thread of its own."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig
from penstock.broker.surroundings import alone
from penstock.config.settings import BrokerSettings, StorageSettings
from penstock.consensus.records import Endpoint
from penstock.doors.rest import HttpConfig, HttpServer
from penstock.operations.services import Services
from penstock.partitions.config import PartitionsConfig

T = TypeVar("T")


def calm(**storage: Any) -> PartitionsConfig:
    """Without housekeeping: messages of tests may be old."""
    return PartitionsConfig(storage=StorageSettings(**{"housekeeping_interval_ms": 3_600_000, **storage}))


_numbers = itertools.count(1)


class DoorInThread:
    """The node's event loop in a thread, so that tests can be plain functions with a plain client."""

    def __init__(self, data_dir: Path, config: HttpConfig, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        endpoints = (Endpoint(door="kafka", host="127.0.0.1", port=9092),)
        settings.setdefault("partitions", calm())
        self.broker = Broker(BrokerConfig(node_id=1, data_dir=data_dir, endpoints=endpoints, **settings), alone(1))
        self.server = HttpServer(Services.of(self.broker), config)
        self.run(self._start())
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.server.port}", timeout=60)

    async def _start(self) -> None:
        await self.broker.start()
        await self.server.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the node's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def look(self, at: Callable[[Broker], T]) -> T:
        """Read something of the broker's, on the loop's own thread."""

        async def read() -> T:
            return at(self.broker)

        return self.run(read())

    async def _stop(self) -> None:
        await self.server.stop()
        await self.broker.close()

    def close(self) -> None:
        self.client.close()
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def http_config(**node: Any) -> HttpConfig:
    """A door on a free port, with settings of the node's."""
    return HttpConfig(port=0, node=BrokerSettings(**{"shutdown_timeout_ms": 10_000, **node}))


OpenDoor = Callable[..., DoorInThread]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorInThread]:
    running = DoorInThread(tmp_path_factory.mktemp("node"), http_config())
    yield running
    running.close()


@pytest.fixture
def open_door(tmp_path: Path) -> Iterator[OpenDoor]:
    """Open a door with settings of the test's own."""
    opened: list[DoorInThread] = []

    def open_one(config: HttpConfig | None = None, **settings: Any) -> DoorInThread:
        opened.append(DoorInThread(tmp_path / str(len(opened)), config or http_config(), **settings))
        return opened[-1]

    yield open_one
    for running in opened:
        running.close()


@pytest.fixture
def client(door: DoorInThread) -> httpx.Client:
    return door.client


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{next(_numbers)}"
