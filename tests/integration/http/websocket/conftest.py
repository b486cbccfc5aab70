"""A client of the WebSocket that says what it wants to hear, and a door for it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.integration.http.conftest import DoorInThread, http_config
from websockets.sync.client import ClientConnection, connect

RESUME_MS = 60_000
SHORT_MS = 400  # for those who wait until it is over


class Talk:
    """One socket, as a client uses it."""

    def __init__(self, port: int, query: str = "", **options: Any) -> None:
        self.socket: ClientConnection = connect(f"ws://127.0.0.1:{port}/v1/ws{query}", legacy=True, **options)
        self.early: list[dict[str, Any]] = []
        self.hello = self.next("hello")

    def say(self, op: str, **members: Any) -> None:
        self.socket.send(json.dumps({"op": op, **members}))

    def next(self, kind: str, timeout: float = 60.0) -> dict[str, Any]:
        """The next frame of a kind; others are kept for later."""
        for at, frame in enumerate(self.early):
            if frame["type"] == kind:
                return self.early.pop(at)
        while True:
            frame = json.loads(self.socket.recv(timeout))
            if frame["type"] == kind:
                found: dict[str, Any] = frame
                return found
            self.early.append(frame)

    def ask(self, op: str, kind: str = "result", **members: Any) -> dict[str, Any]:
        self.say(op, id=f"the {op}", **members)
        answer = self.next(kind)
        assert answer["id"] == f"the {op}"
        return answer

    def has_nothing(self, seconds: float = 0.3) -> bool:
        try:
            self.early.append(json.loads(self.socket.recv(seconds)))
        except TimeoutError:
            pass
        return not self.early

    def cut(self) -> None:
        """As if the network had gone: no closing handshake."""
        self.socket.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def close(self) -> None:
        self.socket.close()


Connect = Callable[..., Talk]


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorInThread]:
    running = DoorInThread(tmp_path_factory.mktemp("node"), http_config(websocket_resume_ms=RESUME_MS))
    yield running
    running.close()


@pytest.fixture
def talk(door: DoorInThread) -> Iterator[Connect]:
    made: list[Talk] = []

    def open_one(query: str = "", **options: Any) -> Talk:
        made.append(Talk(door.server.port, query, **options))
        return made[-1]

    yield open_one
    for each in made:
        each.close()


@pytest.fixture
def ten(door: DoorInThread, topic: str) -> str:
    """A topic of one partition with ten messages."""
    return with_ten_messages(door, topic)


def with_ten_messages(door: DoorInThread, topic: str) -> str:
    assert door.client.post("/v1/topics", json={"name": topic, "partitions": 1}).status_code == 201
    body = {"messages": [{"value": str(at)} for at in range(10)]}
    assert door.client.post(f"/v1/topics/{topic}/batch", json=body).status_code == 200
    return topic


def values(delivery: dict[str, Any]) -> list[str]:
    return [message["value"] for message in delivery["messages"]]


def receipts(delivery: dict[str, Any]) -> list[str]:
    return [message["receipt"] for message in delivery["messages"]]


def in_flight(door: DoorInThread, topic: str, group: str = "default") -> int:
    found: int = door.client.get(f"/v1/queues/{topic}/groups/{group}").json()["in_flight"]
    return found
