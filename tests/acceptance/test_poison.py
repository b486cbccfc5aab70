"""A batch that nobody can unpack, published by a broken producer: no door of a real node is held up by it."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx
import msgspec
import pytest
from tests.support.cluster import eventually
from tests.support.grpc_client import GrpcClient, Subscriber
from tests.support.node import Node
from tests.support.poison import poisoned
from websockets.sync.client import connect

import penstock

MSGPACK = "application/vnd.penstock+msgpack"
HEALTHY = ["before", "after"]
KEPT = {"retention.ms": "-1"}  # what cannot be unpacked is dated long ago


@pytest.fixture
def poisoned_topic(node: Node, topic: str) -> str:
    """A topic with a healthy message, a batch of three that cannot be unpacked, and another healthy message."""
    with httpx.Client(base_url=node.http_url, timeout=60) as rest:
        assert rest.post("/v1/topics", json={"name": topic, "partitions": 1, "configs": KEPT}).status_code == 201
        for value in HEALTHY:
            assert rest.post(f"/v1/topics/{topic}/publish", json={"value": value}).status_code == 200
            if value == "before":
                body = msgspec.msgpack.encode([[0, bytes(poisoned("x", "y", "z", at_ms=1_700_000_000_000))]])
                answer = rest.post(f"/v1/topics/{topic}/batches", content=body, headers={"content-type": MSGPACK})
                assert msgspec.msgpack.decode(answer.content)[0][0] == 1, answer.text
    return topic


def check_buried(node: Node, topic: str) -> None:
    """The three are dead letters that say why, and nothing is left in the queue but what is in flight."""
    with httpx.Client(base_url=node.http_url, timeout=60) as rest:
        deadline = time.monotonic() + 60
        while True:
            letters: list[dict[str, Any]] = rest.get(f"/v1/queues/{topic}/dead-letters").json()["dead_letters"]
            if len(letters) >= 3:
                break
            assert time.monotonic() < deadline, letters
            time.sleep(0.05)
        assert [letter["origin"]["offset"] for letter in letters] == [1, 2, 3]
        assert all("cannot be unpacked" in letter["reason"] for letter in letters), letters


def test_rest_delivers_the_rest(node: Node, poisoned_topic: str) -> None:
    with httpx.Client(base_url=node.http_url, timeout=60) as rest:
        answer = rest.post(f"/v1/queues/{poisoned_topic}/receive", json={"max": 10})
        assert answer.status_code == 200, answer.text
        assert [message["value"] for message in answer.json()["messages"]] == HEALTHY
    check_buried(node, poisoned_topic)


def test_rest_one_by_one_never_answers_with_nothing_while_there_is_something(node: Node, poisoned_topic: str) -> None:
    with httpx.Client(base_url=node.http_url, timeout=60) as rest:
        for value in HEALTHY:
            answer = rest.post(f"/v1/queues/{poisoned_topic}/receive", json={"max": 1, "wait_ms": 20_000})
            assert [message["value"] for message in answer.json()["messages"]] == [value]
    check_buried(node, poisoned_topic)


def test_a_websocket_delivers_the_rest(node: Node, poisoned_topic: str) -> None:
    with connect(node.http_url.replace("http", "ws") + "/v1/ws", legacy=True) as socket:
        socket.send(
            json.dumps({"op": "subscribe", "id": "s", "topic": poisoned_topic, "group": "default", "credits": 9})
        )
        found: list[str] = []
        while len(found) < 2:
            frame = json.loads(socket.recv(60))
            found += [message["value"] for message in frame.get("messages", [])]
        assert found == HEALTHY
        check_buried(node, poisoned_topic)


def test_grpc_delivers_the_rest(node: Node, poisoned_topic: str) -> None:
    client = GrpcClient(node.grpc)
    assert [message.value for message in client.receive(poisoned_topic)] == [b"before", b"after"]
    check_buried(node, poisoned_topic)
    subscriber = Subscriber(client, poisoned_topic, 10, group="other")
    assert [message.value for message in subscriber.messages(2)] == [b"before", b"after"]
    subscriber.finish()
    client.channel.close()


def test_the_client_delivers_the_rest(node: Node, poisoned_topic: str) -> None:
    with penstock.Client(node.http_url) as client:
        messages = client.queue(poisoned_topic).receive(10)
        assert [message.text for message in messages] == HEALTHY
        check_buried(node, poisoned_topic)


def test_a_worker_gets_the_rest(node: Node, poisoned_topic: str) -> None:
    seen: list[str] = []

    app = penstock.App(node.http_url)

    @app.worker(poisoned_topic)
    def work(message: penstock.QueueMessage) -> None:
        seen.append(message.text)

    thread = threading.Thread(target=app.run)
    thread.start()
    try:
        check_buried(node, poisoned_topic)
        eventually(lambda: len(seen) >= len(HEALTHY))
    finally:
        app.stop()
        thread.join(60)
    assert sorted(seen) == sorted(HEALTHY)
