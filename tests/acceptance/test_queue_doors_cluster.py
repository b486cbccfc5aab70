"""Queues, batches and WebSockets through every node of a real cluster, whoever leads what they are about."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import msgspec
import pytest
from tests.support.cluster import Cluster, eventually
from websockets.sync.client import connect

from penstock.records import Record, encode_batch

NODES = (1, 2, 3)
MSGPACK = "application/vnd.penstock+msgpack"
_numbers = count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of which every node leads a partition."""
    name = f"topic-{next(_numbers)}"
    rest(cluster, 1).post("/v1/topics", json={"name": name, "partitions": 3}).raise_for_status()
    eventually(lambda: all(in_sync == list(NODES) for in_sync in cluster.replicas_in_sync(name)), what="in sync")
    eventually(lambda: all(name in known(cluster, number) for number in NODES), what="the topic everywhere")
    assert sorted(cluster.leaders(name)) == [1, 2, 3]
    return name


def known(cluster: Cluster, number: int) -> list[str]:
    return [found["name"] for found in cluster.ask("/v1/topics", number)["topics"]]


def rest(cluster: Cluster, number: int) -> httpx.Client:
    return httpx.Client(base_url=cluster.nodes[number].http_url, timeout=60)


def batch(*values: str, **producer: Any) -> bytes:
    now_ms = int(time.time() * 1000)
    records = [Record(at, now_ms, None, value.encode(), ()) for at, value in enumerate(values)]
    return bytes(encode_batch(records, **producer))


def send(client: httpx.Client, topic: str, batches: list[list[Any]]) -> Any:
    headers = {"content-type": MSGPACK}
    answer = client.post(f"/v1/topics/{topic}/batches", content=msgspec.msgpack.encode(batches), headers=headers)
    assert answer.status_code == 200, answer.text
    return msgspec.msgpack.decode(answer.content)


def values_in(client: httpx.Client, topic: str, partition: int) -> list[str]:
    page = client.get(f"/v1/topics/{topic}/messages", params={"partition": partition, "limit": 1_000}).json()
    return [message["value"] for message in page["messages"]]


@pytest.mark.parametrize("number", NODES)
def test_any_node_takes_batches_for_every_partition(cluster: Cluster, topic: str, number: int) -> None:
    client = rest(cluster, number)
    producer = client.post("/v1/producers").json()
    sent = [[index, batch("a", "b", **producer, base_sequence=0)] for index in range(3)]
    sent += [[index, batch("c", **producer, base_sequence=2)] for index in range(3)]
    assert send(client, topic, sent) == [[0, -1]] * 3 + [[2, -1]] * 3
    assert send(rest(cluster, number % 3 + 1), topic, sent) == [[0, -1]] * 3 + [[2, -1]] * 3
    broken = bytearray(batch("x"))
    broken[-1] ^= 1
    bad = send(client, topic, [[index, data] for index in range(3) for data in (b"", bytes(broken), b"x" * 70)])
    assert all(result[0] == -1 for result in bad)
    for index in range(3):
        assert values_in(client, topic, index) == ["a", "b", "c"]


@pytest.mark.parametrize("number", NODES)
def test_any_node_receives_from_all_partitions_and_any_other_takes_the_acks(
    cluster: Cluster, topic: str, number: int
) -> None:
    client, other = rest(cluster, number), rest(cluster, number % 3 + 1)
    send(client, topic, [[index, batch(*(f"{index}-{at}" for at in range(10)))] for index in range(3)])
    found: list[str] = []
    deadline = time.monotonic() + 60
    while len(found) < 30:
        assert time.monotonic() < deadline, found
        answer = client.post(f"/v1/queues/{topic}/receive", json={"max": 12, "wait_ms": 20_000})
        assert answer.status_code == 200, answer.text
        messages = answer.json()["messages"]
        found += [message["value"] for message in messages]
        if messages:
            body = {"receipts": [message["receipt"] for message in messages]}
            acked = other.post(f"/v1/queues/{topic}/ack", json=body)
            assert acked.status_code == 200, acked.text
    assert len(set(found)) == 30
    for each in NODES:
        view = rest(cluster, each).get(f"/v1/queues/{topic}").json()
        assert (view["ready"], view["in_flight"], view["waiting"]) == (0, 0, 0)
        assert [row["committed"] for row in view["groups"][0]["partitions"]] == [10, 10, 10]
    acks = 0
    for each in NODES:
        for line in rest(cluster, each).get("/metrics").text.splitlines():
            if line.startswith("penstock_queue_acks_total{") and f'topic="{topic}"' in line:
                acks += int(float(line.split()[-1]))
    assert acks == 30


def test_a_long_poll_hears_of_a_message_on_any_node(cluster: Cluster, topic: str) -> None:
    for number in NODES:
        body = {"wait_ms": 20_000, "max": 1}
        with rest(cluster, number) as waiting, rest(cluster, number % 3 + 1) as publishing:
            waiting.post(f"/v1/queues/{topic}/receive", json={})
            for index in range(3):
                publishing.post(f"/v1/topics/{topic}/publish", json={"value": "x", "partition": index})
                began = time.monotonic()
                (message,) = waiting.post(f"/v1/queues/{topic}/receive", json=body).json()["messages"]
                assert time.monotonic() - began < 15
                acked = waiting.post(f"/v1/queues/{topic}/ack", json={"receipts": [message["receipt"]]})
                assert acked.status_code == 200


def test_a_socket_to_any_node_gets_messages_of_all_partitions(cluster: Cluster, topic: str) -> None:
    send(rest(cluster, 1), topic, [[index, batch(*(f"{index}-{at}" for at in range(5)))] for index in range(3)])
    url = cluster.nodes[2].http_url.replace("http", "ws") + "/v1/ws"
    with connect(url) as socket:
        assert json.loads(socket.recv(60))["type"] == "hello"
        socket.send(json.dumps({"op": "subscribe", "topic": topic, "credits": 100}))
        socket.send(json.dumps({"op": "subscribe", "topic": topic, "credits": 100, "from": "earliest"}))
        found: dict[str, list[str]] = {"1": [], "2": []}
        while sum(map(len, found.values())) < 30:
            frame = json.loads(socket.recv(60))
            if frame["type"] == "messages":
                found[frame["subscription"]] += [message["value"] for message in frame["messages"]]
    assert sorted(found["1"]) == sorted(found["2"]) == sorted(f"{index}-{at}" for index in range(3) for at in range(5))
