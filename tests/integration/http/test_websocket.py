"""The WebSocket: frames, credits, sessions that outlive their socket, and what becomes of leases."""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.integration.http.conftest import DoorInThread, OpenDoor
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from penstock.http import HttpConfig

RESUME_MS = 400


class Talk:
    """One socket, as a client uses it."""

    def __init__(self, port: int, query: str = "", **options: Any) -> None:
        self.socket: ClientConnection = connect(f"ws://127.0.0.1:{port}/v1/ws{query}", legacy=True, **options)
        self.early: list[dict[str, Any]] = []
        self.hello = self.next("hello")

    def say(self, op: str, **members: Any) -> None:
        self.socket.send(json.dumps({"op": op, **members}))

    def next(self, kind: str, timeout: float = 10.0) -> dict[str, Any]:
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
    running = DoorInThread(tmp_path_factory.mktemp("node"), HttpConfig(port=0, websocket_resume_ms=RESUME_MS))
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


# -- frames ------------------------------------------------------------------------------------------------------------


def test_every_socket_is_a_consumer_of_its_own(talk: Connect) -> None:
    first, second = talk().hello, talk().hello
    assert first["consumer"] != second["consumer"]
    assert first["token"] != second["token"]
    assert (first["resumed"], first["resume_ms"], first["subscriptions"]) == (False, RESUME_MS, [])


def test_messages_are_published_and_each_is_told_where_it_is(talk: Connect, topic: str) -> None:
    answer = talk().ask(
        "publish", topic=topic, messages=[{"value": "a", "partition": 0}, {"value": "b", "partition": 99}]
    )
    good, bad = answer["results"]
    assert (good["topic"], good["partition"], good["offset"]) == (topic, 0, 0)
    assert bad["error"]["code"] == "unknown_partition"


def test_a_subscription_sends_as_many_messages_as_it_has_credits_for(talk: Connect, ten: str) -> None:
    client = talk()
    answer = client.ask("subscribe", topic=ten, credits=4)
    assert (answer["subscription"], answer["credits"]) == ("1", 4)
    first = client.next("messages")
    assert (values(first), first["credits"], first["number"]) == (["0", "1", "2", "3"], 0, 1)
    assert client.has_nothing()
    assert client.ask("next", subscription="1", credits=3)["credits"] == 3
    assert values(client.next("messages")) == ["4", "5", "6"]
    assert client.has_nothing()
    results = client.ask("ack", subscription="1", receipts=receipts(first))["results"]
    assert [result["status"] for result in results] == ["done"] * 4
    client.ask("unsubscribe", subscription="1")
    assert client.ask("next", "error", subscription="1", credits=1)["error"]["code"] == "invalid_request"


def test_messages_come_as_soon_as_they_are_published(talk: Connect, topic: str) -> None:
    client, other = talk(), talk()
    other.ask("publish", topic=topic, messages=[{"value": "first"}])
    client.ask("subscribe", topic=topic, group="g", credits=10, subscription="mine")
    assert values(client.next("messages")) == ["first"]
    other.ask("publish", topic=topic, messages=[{"value": "second"}])
    delivery = client.next("messages")
    assert (values(delivery), delivery["subscription"]) == (["second"], "mine")


def test_receipts_are_settled_in_every_way(door: DoorInThread, talk: Connect, ten: str) -> None:
    client = talk()
    client.ask("subscribe", topic=ten, credits=5)
    one, two, three, four, five = receipts(client.next("messages"))
    settled = {
        verb: client.ask(verb, receipts=[receipt], **details)["results"][0]["status"]
        for verb, receipt, details in (
            ("ack", one, {}),
            ("nack", two, {"delay_ms": 0, "reason": "r"}),
            ("reject", three, {"reason": "r"}),
            ("extend", four, {"visibility_timeout_ms": 60_000}),
            ("release", five, {}),
        )
    }
    assert set(settled.values()) == {"done"}
    client.ask("next", subscription="1", credits=2)
    again = []
    while len(again) < 2:
        again += client.next("messages")["messages"]
    assert sorted((message["value"], message["delivery_count"]) for message in again) == [("1", 2), ("4", 1)]
    results = client.ask("ack", receipts=[one, "nonsense"])["results"]
    assert [result["status"] for result in results] == ["already_acked", "malformed"]


def test_two_consumers_share_the_work_and_none_gets_what_the_other_has(talk: Connect, ten: str) -> None:
    first, second = talk(), talk()
    first.ask("subscribe", topic=ten, credits=5)
    mine = values(first.next("messages"))
    second.ask("subscribe", topic=ten, credits=10)
    theirs = values(second.next("messages"))
    assert sorted(mine + theirs, key=int) == [str(at) for at in range(10)]


def test_a_stream_reads_from_a_place_on_without_leases(door: DoorInThread, talk: Connect, ten: str) -> None:
    client = talk()
    client.ask("subscribe", topic=ten, **{"from": 7}, partition=0, credits=100)
    first = client.next("messages")
    assert [(message["offset"], message["value"]) for message in first["messages"]] == [(7, "7"), (8, "8"), (9, "9")]
    assert "receipt" not in first["messages"][0]
    client.ask("subscribe", topic=ten, **{"from": "latest"}, credits=1, subscription="tail")
    assert door.client.post(f"/v1/topics/{ten}/publish", json={"value": "new"}).status_code == 200
    deliveries = [client.next("messages"), client.next("messages")]
    assert {(delivery["subscription"], *values(delivery)) for delivery in deliveries} == {("1", "new"), ("tail", "new")}
    assert door.client.get(f"/v1/queues/{ten}").json()["groups"] == []


def test_a_stream_of_several_partitions_keeps_to_its_credits_and_misses_nothing(
    door: DoorInThread, talk: Connect, topic: str
) -> None:
    assert door.client.post("/v1/topics", json={"name": topic, "partitions": 4}).status_code == 201
    body = {"messages": [{"value": str(at), "partition": at % 4} for at in range(100)]}
    assert door.client.post(f"/v1/topics/{topic}/batch", json=body).status_code == 200
    client = talk()
    client.ask("subscribe", topic=topic, since="2020-01-01T00:00:00Z", credits=0)
    found: list[str] = []
    for _ in range(20):
        client.ask("next", subscription="1", credits=5)
        before = len(found)
        while len(found) < before + 5:
            found += values(client.next("messages"))
        assert len(found) == before + 5
    assert sorted(found, key=int) == [str(at) for at in range(100)]
    # Partitions take turns, though each could use up the credits alone.
    assert {int(value) % 4 for value in found[:20]} == {0, 1, 2, 3}


def test_answers_have_the_ids_of_their_frames_however_many_are_under_way(talk: Connect, topic: str) -> None:
    client = talk()
    for at in range(300):
        client.say("publish", id=at, topic=topic, messages=[{"value": str(at)}])
    answers = [client.next("result") for _ in range(300)]
    assert sorted(answer["id"] for answer in answers) == list(range(300))


@pytest.mark.parametrize(
    ("frame", "code", "frame_id"),
    [
        ("{", "malformed_body", None),
        ("", "malformed_body", None),
        ("[" * 100_000, "invalid_body", None),
        ("[]", "invalid_body", None),
        ('{"id": 5}', "invalid_body", 5),
        ('{"op": "dance", "id": "x"}', "invalid_body", "x"),
        ('{"op": "subscribe", "id": 1, "topic": "no-such-topic"}', "unknown_topic", 1),
        ('{"op": "subscribe", "id": 1, "topic": "no-such-topic", "from": "latest"}', "unknown_topic", 1),
        ('{"op": "subscribe", "id": 1, "topic": "t", "credits": -1}', "invalid_body", 1),
        ('{"op": "subscribe", "id": 1, "topic": "t", "credits": 1e30}', "invalid_body", 1),
        ('{"op": "subscribe", "id": 1, "topic": "t", "visibility_timeout_ms": 0}', "invalid_body", 1),
        ('{"op": "subscribe", "id": 1, "topic": "t", "group": "g", "from": "latest"}', "invalid_request", 1),
        ('{"op": "subscribe", "id": 1, "topic": "t", "partition": 0}', "invalid_request", 1),
        ('{"op": "subscribe", "id": 1, "topic": "__consumer_offsets"}', None, 1),
        ('{"op": "next", "id": 1, "subscription": "none", "credits": 1}', "invalid_request", 1),
        ('{"op": "unsubscribe", "id": 1, "subscription": "none"}', "invalid_request", 1),
        ('{"op": "ack", "id": 1, "receipts": []}', "invalid_body", 1),
        ('{"op": "ack", "id": 1, "receipts": ["x"], "subscription": "none"}', "invalid_request", 1),
        ('{"op": "nack", "id": 1, "receipts": ["x"], "delay_ms": -1}', "invalid_body", 1),
        ('{"op": "publish", "id": 1, "topic": "t", "messages": []}', "invalid_body", 1),
        ('{"op": "publish", "id": 1, "topic": "t", "messages": [{}]}', "invalid_body", 1),
        ('{"op": "publish", "id": 1, "topic": "a b", "messages": [{"value": 1}]}', "invalid_topic_name", 1),
    ],
)
def test_a_bad_frame_is_answered_and_the_socket_goes_on(
    talk: Connect, frame: str, code: str | None, frame_id: object
) -> None:
    client = talk()
    client.socket.send(frame)
    answer = client.next("error")
    assert answer["id"] == frame_id
    assert code is None or answer["error"]["code"] == code
    assert 400 <= answer["error"]["status"] < 500
    assert client.ask("ping")["time"]


def test_a_frame_that_is_too_large_closes_the_socket(open_door: OpenDoor) -> None:
    small = open_door(HttpConfig(port=0, body_bytes_max=10_000))
    client = Talk(small.server.port)
    client.socket.send(json.dumps({"op": "ping", "id": "x" * 20_000}))
    with pytest.raises(ConnectionClosed) as closed:
        client.next("result")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_a_subscription_tells_when_its_topic_is_gone(door: DoorInThread, talk: Connect, ten: str) -> None:
    client = talk()
    client.ask("subscribe", topic=ten, credits=20)
    client.next("messages")
    assert door.client.delete(f"/v1/topics/{ten}").status_code == 204
    ended = client.next("ended", timeout=30)
    assert (ended["subscription"], ended["error"]["code"]) == ("1", "unknown_topic")
    assert client.ask("ping")


# -- who may connect ---------------------------------------------------------------------------------------------------


def test_pages_of_other_sites_and_other_paths_are_refused(door: DoorInThread, talk: Connect) -> None:
    for refused, options, status in (
        ("/v1/ws", {"origin": "http://elsewhere.example"}, 403),
        ("/v1/ws?no=such", {}, 400),
        ("/v1/elsewhere", {}, 404),
    ):
        with pytest.raises(InvalidStatus) as error:
            connect(f"ws://127.0.0.1:{door.server.port}{refused}", legacy=True, **options)  # type: ignore[arg-type]
        assert error.value.response.status_code == status
        assert json.loads(error.value.response.body or b"")["status"] == status
    assert talk(origin=f"http://127.0.0.1:{door.server.port}").hello
    plain = door.client.get("/v1/ws")
    assert (plain.status_code, plain.json()["code"]) == (426, "upgrade_required")


# -- sockets that go ---------------------------------------------------------------------------------------------------


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


def test_who_comes_too_late_is_somebody_else(talk: Connect, ten: str) -> None:
    client = talk()
    client.ask("subscribe", topic=ten, credits=1)
    client.next("messages")
    client.cut()
    time.sleep(RESUME_MS / 1000 + 0.3)
    late = talk(f"?resume={client.hello['token']}&seen=0")
    assert late.hello["resumed"] is False
    assert late.hello["consumer"] != client.hello["consumer"]
    assert late.hello["subscriptions"] == []


def test_nothing_is_received_for_a_client_that_is_gone(door: DoorInThread, talk: Connect, topic: str) -> None:
    assert door.client.post("/v1/topics", json={"name": topic, "partitions": 1}).status_code == 201
    client = talk()
    client.ask("subscribe", topic=topic, credits=100)
    client.cut()
    time.sleep(0.2)
    assert door.client.post(f"/v1/topics/{topic}/publish", json={"value": "a"}).status_code == 200
    messages = door.client.post(f"/v1/queues/{topic}/receive", json={"wait_ms": 2_000}).json()["messages"]
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
    time.sleep(0.3)
    alive = []
    for heir in heirs:
        try:
            heir.ask("next", subscription="1", credits=3)
            alive.append(heir)
        except ConnectionClosed:
            pass
    (heir,) = alive
    assert values(heir.next("messages")) == ["1", "2", "3"]
    assert heir.has_nothing()


def test_there_are_only_so_many_sockets(open_door: OpenDoor) -> None:
    door = open_door(HttpConfig(port=0, connections_max=3))
    held = [Talk(door.server.port) for _ in range(3)]
    with pytest.raises(InvalidStatus) as refused:
        Talk(door.server.port)
    assert refused.value.response.status_code == 503
    held.pop().close()
    time.sleep(0.3)
    assert Talk(door.server.port).hello


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
    door: DoorInThread, ten: str, comes_back: bool
) -> None:
    from penstock.http.websocket_subscriptions import QueueSubscription

    held = door.server._door
    broken, sound = _BrokenOutlet(frames=1), _BrokenOutlet(frames=100)

    async def break_off() -> Any:
        session = held.sessions.open()
        await door.broker.queues.declare(ten, "default")
        session.subscriptions["s"] = QueueSubscription(held, session, "s", ten, 4, "default", 60_000)
        await session.attach(broken, seen=None, is_resumed=False)
        return session

    session = door.run(break_off())
    deadline = time.monotonic() + 10
    while in_flight(door, ten) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
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
    time.sleep(RESUME_MS / 1000 + 0.3)
    assert in_flight(door, ten) == 0
    messages = door.client.post(f"/v1/queues/{ten}/receive", json={"max": 10}).json()["messages"]
    assert {message["delivery_count"] for message in messages} == {1}
    assert len(messages) == 10


def test_sessions_are_forgotten_when_they_end(door: DoorInThread, talk: Connect) -> None:
    time.sleep(RESUME_MS / 1000 + 0.3)  # those of other tests
    before = door.look(lambda _: len(door.server._door.sessions))
    client = talk()
    assert door.look(lambda _: len(door.server._door.sessions)) == before + 1
    client.close()
    deadline = time.monotonic() + 5
    while door.look(lambda _: len(door.server._door.sessions)) > before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_client_that_does_not_answer_pings_is_cut_off(open_door: OpenDoor) -> None:
    door = open_door(HttpConfig(port=0, websocket_ping_ms=200))
    key = base64.b64encode(os.urandom(16)).decode()
    with socket.create_connection(("127.0.0.1", door.server.port), timeout=10) as raw:
        raw.sendall(
            f"GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}"
            "\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        began, data = time.monotonic(), b""
        while piece := raw.recv(65_536):
            data += piece
        assert time.monotonic() - began < 5
    assert data.startswith(b"HTTP/1.1 101")
    assert b"hello" in data


def test_a_node_that_stops_says_so_at_once(open_door: OpenDoor) -> None:
    door = open_door(HttpConfig(port=0))
    client = Talk(door.server.port)
    assert door.client.post("/v1/topics", json={"name": "t"}).status_code == 201
    client.ask("subscribe", topic="t", credits=10)
    began = time.monotonic()
    door.run(door.server.stop())
    assert time.monotonic() - began < 3
    with pytest.raises(ConnectionClosed) as closed:
        client.next("messages")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012
