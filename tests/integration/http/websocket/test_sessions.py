"""Sessions of the WebSocket, which outlive their socket for a while, and what becomes of their leases."""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.integration.http.conftest import DoorInThread, OpenDoor, http_config
from tests.integration.http.websocket.conftest import (
    RESUME_MS,
    SHORT_MS,
    Connect,
    Talk,
    in_flight,
    receipts,
    values,
    with_ten_messages,
)
from tests.support.cluster import eventually
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State

from penstock.doors.rest import HttpConfig


def test_who_comes_back_in_time_is_the_same_and_gets_nothing_twice(door: DoorInThread, talk: Connect, ten: str) -> None:
    client, other = talk(), talk()
    client.ask("subscribe", topic=ten, credits=6, visibility_timeout_ms=60_000)
    before = client.next("messages")
    client.ask("next", subscription="1", credits=1)
    last = client.next("messages")
    client.cut()
    back = talk(f"?resume={client.hello['token']}")
    assert (back.hello["consumer"], back.hello["resumed"]) == (client.hello["consumer"], True)
    assert back.hello["subscriptions"] == ["1"]
    other.ask("subscribe", topic=ten, credits=10)
    assert values(other.next("messages")) == ["7", "8", "9"]
    assert back.has_nothing()
    results = back.ask("ack", receipts=receipts(before) + receipts(last))["results"]
    assert {result["status"] for result in results} == {"done"}
    assert in_flight(door, ten) == 3
    door.client.post(f"/v1/topics/{ten}/publish", json={"value": "new"})
    other.ask("unsubscribe", subscription="1")
    back.ask("next", subscription="1", credits=1)
    fresh = other.early or [back.next("messages")]
    assert values(fresh[0]) == ["new"]


def test_deliveries_that_did_not_arrive_are_sent_again_under_the_same_receipts(talk: Connect, ten: str) -> None:
    client = talk()
    client.ask("subscribe", topic=ten, credits=2, visibility_timeout_ms=60_000)
    first = client.next("messages")
    client.ask("next", subscription="1", credits=2)
    second = client.next("messages")
    client.cut()
    back = talk(f"?resume={client.hello['token']}&seen={first['number']}")
    again = back.next("messages")
    assert again == second
    assert back.has_nothing()
    results = back.ask("ack", receipts=receipts(first) + receipts(again))["results"]
    assert {result["status"] for result in results} == {"done"}


def test_credits_that_were_left_go_on(door: DoorInThread, talk: Connect, ten: str) -> None:
    client = talk()
    client.ask("subscribe", topic=ten, credits=12, visibility_timeout_ms=60_000)
    client.next("messages")
    client.cut()
    back = talk(f"?resume={client.hello['token']}")
    body = {"messages": [{"value": "x"}, {"value": "y"}, {"value": "z"}]}
    assert door.client.post(f"/v1/topics/{ten}/batch", json=body).status_code == 200
    assert values(back.next("messages")) == ["x", "y"]
    assert back.has_nothing()


@pytest.fixture
def forgetful(open_door: OpenDoor) -> DoorInThread:
    """A door that waits for nobody for long."""
    return open_door(http_config(websocket_resume_ms=SHORT_MS))


def sessions(door: DoorInThread) -> int:
    return door.look(lambda _: len(door.server._socket.sessions))


def test_who_comes_too_late_is_somebody_else(forgetful: DoorInThread, topic: str) -> None:
    assert forgetful.client.post(f"/v1/topics/{topic}/publish", json={"value": "a"}).status_code == 200
    client = Talk(forgetful.server.port)
    client.ask("subscribe", topic=topic, credits=1)
    client.next("messages")
    client.cut()
    eventually(lambda: sessions(forgetful) == 0)
    late = Talk(forgetful.server.port, f"?resume={client.hello['token']}&seen=0")
    assert late.hello["resumed"] is False
    assert late.hello["consumer"] != client.hello["consumer"]
    assert late.hello["subscriptions"] == []


def test_nothing_is_received_for_a_client_that_is_gone(door: DoorInThread, talk: Connect, topic: str) -> None:
    assert door.client.post("/v1/topics", json={"name": topic, "partitions": 1}).status_code == 201
    client = talk()
    client.ask("subscribe", topic=topic, credits=100)
    client.cut()
    eventually(lambda: client.hello["token"] in door.server._socket.sessions._timers)  # the node has heard of it
    assert door.client.post(f"/v1/topics/{topic}/publish", json={"value": "a"}).status_code == 200
    messages = door.client.post(f"/v1/queues/{topic}/receive", json={"wait_ms": 20_000}).json()["messages"]
    assert [message["delivery_count"] for message in messages] == [1]


def test_a_second_socket_takes_a_session_over(talk: Connect, ten: str) -> None:
    client = talk()
    client.ask("subscribe", topic=ten, credits=1)
    client.next("messages")
    heir = talk(f"?resume={client.hello['token']}")
    assert heir.hello["resumed"] is True
    with pytest.raises(ConnectionClosed) as closed:
        client.next("result")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4001
    heir.ask("next", subscription="1", credits=1)
    assert values(heir.next("messages")) == ["1"]


def test_of_many_sockets_that_resume_a_session_at_once_the_last_has_it(talk: Connect, ten: str) -> None:
    client = talk()
    client.ask("subscribe", topic=ten, credits=1, visibility_timeout_ms=60_000)
    client.next("messages")
    with ThreadPoolExecutor(8) as pool:
        heirs = list(pool.map(lambda _: talk(f"?resume={client.hello['token']}"), range(8)))
    assert all(heir.hello["consumer"] == client.hello["consumer"] for heir in heirs)
    eventually(lambda: sum(heir.socket.protocol.state is State.OPEN for heir in heirs) == 1, what="one is left")
    (heir,) = [each for each in heirs if each.socket.protocol.state is State.OPEN]
    heir.ask("next", subscription="1", credits=3)
    assert values(heir.next("messages")) == ["1", "2", "3"]
    assert heir.has_nothing()


def test_there_are_only_so_many_sockets(open_door: OpenDoor) -> None:
    door = open_door(HttpConfig(port=0, connections_max=3))
    held = [Talk(door.server.port) for _ in range(3)]
    with pytest.raises(InvalidStatus) as refused:
        Talk(door.server.port)
    assert refused.value.response.status_code == 503
    held.pop().close()
    eventually(lambda: bool(Talk(door.server.port).hello))  # as soon as the node has heard of it


class _BrokenOutlet:
    """A socket that breaks after some frames."""

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self.sent: list[dict[str, Any]] = []

    async def send(self, data: bytes) -> None:
        if len(self.sent) >= self.frames:
            raise ConnectionResetError
        self.sent.append(json.loads(data))

    async def close(self, code: int, reason: str) -> None:
        self.frames = 0


@pytest.mark.parametrize("comes_back", [True, False])
def test_what_could_not_be_sent_waits_for_the_client_or_is_given_back_uncounted(
    open_door: OpenDoor, topic: str, comes_back: bool
) -> None:
    from penstock.doors.websocket.subscriptions import QueueSubscription

    door = open_door(http_config(websocket_resume_ms=RESUME_MS if comes_back else SHORT_MS))
    ten = with_ten_messages(door, topic)
    held, services = door.server._socket, door.server._door.services
    broken, sound = _BrokenOutlet(frames=1), _BrokenOutlet(frames=100)

    async def break_off() -> Any:
        session = held.sessions.open()
        await door.broker.queues.declare(ten, "default")
        session.subscriptions["s"] = QueueSubscription(services, session, "s", ten, 4, "default", 60_000)
        await session.attach(broken, seen=None, is_resumed=False)
        return session

    session = door.run(break_off())
    eventually(lambda: in_flight(door, ten) == 4)
    assert [frame["type"] for frame in broken.sent] == ["hello"]

    async def go_on() -> None:
        await held.sessions.detach(session, broken, is_for_good=False)
        if comes_back:
            assert held.sessions.resume(session.token) is session
            await session.attach(sound, seen=None, is_resumed=True)

    door.run(go_on())
    if comes_back:
        assert [frame["type"] for frame in sound.sent] == ["hello", "messages"]
        assert values(sound.sent[1]) == ["0", "1", "2", "3"]
        door.run(held.sessions.detach(session, sound, is_for_good=True))
        return
    eventually(lambda: in_flight(door, ten) == 0)
    messages = door.client.post(f"/v1/queues/{ten}/receive", json={"max": 10}).json()["messages"]
    assert {message["delivery_count"] for message in messages} == {1}
    assert len(messages) == 10


def test_sessions_are_forgotten_when_they_end(open_door: OpenDoor) -> None:
    door = open_door(http_config(websocket_resume_ms=RESUME_MS))
    client = Talk(door.server.port)
    assert sessions(door) == 1
    client.close()
    eventually(lambda: sessions(door) == 0)


def test_a_client_that_does_not_answer_pings_is_cut_off(open_door: OpenDoor) -> None:
    door = open_door(http_config(websocket_ping_ms=200))
    key = base64.b64encode(os.urandom(16)).decode()
    with socket.create_connection(("127.0.0.1", door.server.port), timeout=60) as raw:
        raw.sendall(
            f"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        began, data = time.monotonic(), b""
        while piece := raw.recv(65_536):
            data += piece
        assert time.monotonic() - began < 200
    assert data.startswith(b"HTTP/1.1 101")
    assert b"hello" in data


def test_a_node_that_stops_says_so_at_once(open_door: OpenDoor) -> None:
    door = open_door(HttpConfig(port=0))
    client = Talk(door.server.port)
    assert door.client.post("/v1/topics", json={"name": "t"}).status_code == 201
    client.ask("subscribe", topic="t", credits=10)
    began = time.monotonic()
    door.run(door.server.stop())
    assert time.monotonic() - began < 20
    with pytest.raises(ConnectionClosed) as closed:
        client.next("messages")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
