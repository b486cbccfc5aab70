"""Priority lanes at the doors of a real node: every way in, every way out, and what a message goes through between."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from confluent_kafka import Producer
from tests.acceptance.conftest import NodeMaker
from tests.support.node import Node, penstock_command
from websockets.sync.client import connect

from penstock import Client, Draft
from penstock.grpc.generated import queues_pb2, queues_pb2_grpc
from penstock.grpc.generated.message_pb2 import Message
from penstock.grpc.generated.messages_pb2 import PublishRequest
from penstock.grpc.generated.messages_pb2_grpc import MessagesStub
from penstock.priorities import PRIORITIES

WEIGHTS = dict(zip(PRIORITIES, (50, 25, 15, 7, 3), strict=True))


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[Client]:
    with Client(node.http_url) as made:
        yield made


def rest(node: Node, method: str, path: str, body: object = None) -> Any:
    answer = httpx.request(method, f"{node.http_url}{path}", json=body, timeout=60)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


def receive(node: Node, topic: str, **body: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rest(node, "POST", f"/v1/queues/{topic}/receive", {"max": 1, **body})["messages"]
    return found


def test_urgent_messages_of_every_door_come_first(node: Node, client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1, **{"queue.lanes": "on"})
    client.publish_many(topic, [b"background"] * 10_000, priority="background")
    rest(node, "POST", f"/v1/topics/{topic}/publish", {"value": "rest", "priority": "critical"})
    client.publish(topic, "sdk", priority="critical", headers={"trace": "1"})
    client.publish_many(topic, [Draft("draft", priority="critical"), Draft("high", priority="high"), "normal"])
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for value, priority in (("kafka", b"critical"), ("kafka-low", b"low"), ("kafka-odd", b"urgent!")):
        producer.produce(topic, value, headers=[("penstock-priority", priority)])
    assert producer.flush(60) == 0
    with connect(f"{node.http_url.replace('http', 'ws')}/v1/ws") as socket:
        messages = [{"value": "websocket", "priority": "critical"}]
        socket.send(json.dumps({"op": "publish", "id": 1, "topic": topic, "messages": messages}))
        while (frame := json.loads(socket.recv(60)))["type"] != "result":
            assert frame["type"] != "error", frame
        assert "error" not in frame["results"][0]
    with grpc.insecure_channel(node.grpc) as channel:
        message = Message(value=b"grpc", priority="critical")
        MessagesStub(channel).Publish(PublishRequest(topic=topic, message=message), timeout=60)
    command = [penstock_command(), "queue", "send", topic, "cli", "--priority", "critical", "--url", node.http_url]
    subprocess.run(command, check=True, timeout=60)
    got = receive(node, topic, max=11)
    assert {message["value"] for message in got[:7]} == {"rest", "sdk", "draft", "kafka", "websocket", "grpc", "cli"}
    assert {message.get("priority") for message in got[:7]} == {"critical"}
    assert [(message["value"], message.get("priority")) for message in got[7:]] == [
        ("high", "high"),
        ("normal", None),
        ("kafka-odd", None),
        ("kafka-low", "low"),
    ]
    (leased,) = client.queue(topic, "other").receive(1)
    assert leased.priority == "critical"
    with grpc.insecure_channel(node.grpc) as channel:
        found = queues_pb2_grpc.QueuesStub(channel).GetLanes(queues_pb2.GetLanesRequest(topic=topic), timeout=60)
        (lanes,) = [group.partitions[0].lanes for group in found.groups if group.group == "default"]
        assert {lane.lane: lane.in_flight for lane in lanes}["critical"] == 7


def test_a_bad_name_is_refused_with_the_good_ones(node: Node, client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    body = {"value": "x", "priority": "urgent"}
    answer = httpx.post(f"{node.http_url}/v1/topics/{topic}/publish", json=body, timeout=60)
    assert answer.status_code in {400, 422}
    for name in PRIORITIES:
        assert name in answer.json()["detail"]
    with pytest.raises(Exception, match="critical, high, normal, low and background"):
        client.publish(topic, "x", priority="urgent")
    assert not client.queue(topic).receive(1)


def test_shares_hold_and_are_told(node: Node, client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1, **{"queue.lanes": "on"})
    for priority in PRIORITIES:
        client.publish_many(topic, [priority.encode()] * 300, priority=priority)
    queue = client.queue(topic, "workers")
    served: Counter[str] = Counter()
    for _ in range(40):
        messages = queue.receive(10)
        served.update(message.priority for message in messages)
        queue.ack(messages)
    for lane, weight in WEIGHTS.items():
        assert abs(served[lane] / 400 - weight / 100) <= 0.02, served
    (group,) = rest(node, "GET", f"/v1/queues/{topic}/lanes?group=workers")["groups"]
    assert {lane["lane"]: (lane["served"], lane["ready"]) for lane in group["lanes"]} == {
        lane: (served[lane], 300 - served[lane]) for lane in PRIORITIES
    }
    metrics = httpx.get(f"{node.http_url}/metrics", timeout=60).text
    assert f'penstock_queue_lane_served_total{{group="workers",lane="critical",topic="{topic}"}} 200.0' in metrics
    command = [penstock_command(), "queue", "lanes", topic, "-g", "workers", "--url", node.http_url, "-o"]
    told = json.loads(subprocess.run([*command, "json"], check=True, capture_output=True, timeout=60).stdout)
    assert [lane["lane"] for lane in told["lanes"]] == list(PRIORITIES)
    table = subprocess.run([*command, "table"], check=True, capture_output=True, text=True, timeout=60).stdout
    assert "background" in table
    assert "PER SECOND" in table


def test_a_priority_survives_retries_dead_letters_redrives_and_a_kill(make_node: NodeMaker, topic: str) -> None:
    node = make_node()
    node.start()
    configs = {"queue.lanes": "on", "queue.tries": "2", "queue.retry.base.ms": "0"}
    with Client(node.http_url) as client:
        client.create_topic(topic, partitions=1, **configs)
        client.publish_many(topic, [b"background"] * 200, priority="background")
        client.publish(topic, "urgent", priority="critical")
    for count in (1, 2):
        (message,) = receive(node, topic, wait_ms=20_000)
        assert (message["value"], message["delivery_count"], message["priority"]) == ("urgent", count, "critical")
        rest(node, "POST", f"/v1/queues/{topic}/nack", {"receipts": [message["receipt"]], "delay_ms": 0})
        if count == 1:
            node.kill()
            node.start()
    deadline = time.monotonic() + 60
    while not (dead := rest(node, "GET", f"/v1/queues/{topic}/dead-letters")["dead_letters"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert dead[0]["priority"] == "critical"
    rest(node, "POST", f"/v1/queues/{topic}/redrive", {})
    while (message := receive(node, topic)[0])["value"] != "urgent":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert message["priority"] == "critical"
