"""How a node is told to stop, and what it does when it cannot."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.config.kinds import Address
from penstock.config.loading import load
from penstock.config.settings import Settings
from penstock.errors import StartupError
from penstock.node import server
from penstock.node.addresses import Listeners


class ExitedError(SystemExit):
    """Stands for the end of the process: a loop lets it through at once, unlike other exceptions."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes the process would have ended with at once."""
    codes: list[int] = []

    def exit_now(code: int) -> None:
        codes.append(code)
        raise ExitedError

    monkeypatch.setattr(os, "_exit", exit_now)
    return codes


class FakeNode:
    """A node of which only the life is real."""

    def __init__(self, settings: Settings, *, stop_s: float = 0.0) -> None:
        self.settings = settings
        self.kafka_address = self.http_address = self.grpc_address = Address("127.0.0.1", 1)
        self.broker = type("Broker", (), {"replicas": ()})
        self.encryption = type("Encryption", (), {"is_on": False})
        self.calls: list[str] = []
        self._stop_s = stop_s

    async def start(self) -> None:
        self.calls.append("start")

    async def stop(self) -> None:
        await asyncio.sleep(self._stop_s)
        self.calls.append("stop")


def serve(node: FakeNode, on_ready: Any) -> int:
    with asyncio.Runner() as runner:
        return runner.run(server._serve(node, on_ready))  # type: ignore[arg-type]


async def interrupt(_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_node(number: int) -> None:
    async def on_ready(_: object) -> None:
        os.kill(os.getpid(), number)

    node = FakeNode(Settings())
    assert serve(node, on_ready) == 0
    assert node.calls == ["start", "stop"]


def test_a_second_signal_ends_at_once(exits: list[int]) -> None:
    async def on_ready(_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    node = FakeNode(Settings(), stop_s=30)
    with pytest.raises(ExitedError):
        serve(node, on_ready)
    assert exits == [128 + signal.SIGINT]
    assert "stop" not in node.calls


def test_a_stop_that_takes_too_long_is_cut_off(exits: list[int]) -> None:
    settings = load({"PENSTOCK_BROKER__SHUTDOWN_TIMEOUT_MS": "1s"}).settings
    with pytest.raises(ExitedError):
        serve(FakeNode(settings, stop_s=30), interrupt)
    assert exits == [1]


def test_a_node_whose_first_task_fails_is_stopped() -> None:
    async def on_ready(_: object) -> None:
        raise StartupError("no")

    node = FakeNode(Settings())
    with pytest.raises(StartupError):
        serve(node, on_ready)
    assert node.calls == ["start", "stop"]


def test_a_door_that_cannot_open_closes_what_is_open(tmp_path: Path) -> None:
    settings = load(
        {
            "PENSTOCK_BROKER__DATA_DIR": str(tmp_path / "data"),
            "PENSTOCK_BROKER__KAFKA": "127.0.0.1:0",
            "PENSTOCK_BROKER__HTTP": "192.0.2.1:8080",
            "PENSTOCK_SECURITY__INSECURE": "true",
        }
    ).settings

    async def start() -> None:
        with pytest.raises(StartupError):
            await server.Node(settings).start()
        again = server.Node(settings)  # the data directory is free again
        await again.stop()

    asyncio.run(start())


def test_listening_everywhere_tells_clients_this_machines_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    everywhere, local = Address("0.0.0.0", 9092), Address("127.0.0.1", 8080)
    listeners = Listeners(kafka=everywhere, http=local, grpc=None, internal=None)
    kafka, http = listeners.endpoints(Settings().broker)
    assert (kafka.door, kafka.host, kafka.port) == ("kafka", "here", 9092)
    assert (http.door, http.host, http.port) == ("http", "127.0.0.1", 8080)
    advertised = load({"PENSTOCK_BROKER__ADVERTISED_KAFKA": "public:19092"}).settings
    assert listeners.endpoints(advertised.broker)[0].host == "public"
