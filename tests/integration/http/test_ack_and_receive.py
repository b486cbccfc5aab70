"""Acks that come with the next receive: they count first, and one that fails keeps everything where it was."""

from __future__ import annotations

from typing import Any

import httpx

from .conftest import DoorInThread


def publish(client: httpx.Client, topic: str, *values: str, key: str | None = None) -> None:
    messages = [{"value": value, **({} if key is None else {"key": key}), "partition": 0} for value in values]
    answer = client.post(f"/v1/topics/{topic}/batch", json={"messages": messages})
    assert answer.status_code == 200, answer.text


def receive(client: httpx.Client, topic: str, status: int = 200, **asked: Any) -> Any:
    answer = client.post(f"/v1/queues/{topic}/receive", json={"group": "g", "max": 1, **asked})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_what_is_acked_makes_room_for_what_is_received(client: httpx.Client, topic: str) -> None:
    publish(client, topic, "a", "b", "c")
    settings = {"in.flight.consumer.max": 1}
    client.put(f"/v1/queues/{topic}/groups/g", json={"settings": settings}).raise_for_status()
    (first,) = receive(client, topic, consumer="one")["messages"]
    assert receive(client, topic, consumer="one")["messages"] == []
    told = receive(client, topic, consumer="one", ack=[first["receipt"]])
    assert [each["status"] for each in told["acked"]] == ["done"]
    assert [each["value"] for each in told["messages"]] == ["b"]


def test_the_next_message_of_a_key_comes_with_the_ack_of_the_last(client: httpx.Client, topic: str) -> None:
    publish(client, topic, "a", "b", key="k")
    client.put(f"/v1/queues/{topic}/groups/g", json={"settings": {"order": "key"}}).raise_for_status()
    (first,) = receive(client, topic)["messages"]
    assert receive(client, topic)["messages"] == []
    (second,) = receive(client, topic, ack=[first["receipt"]])["messages"]
    assert (second["value"], second["delivery_count"]) == ("b", 1)


def test_with_an_ack_that_fails_nothing_is_received(client: httpx.Client, topic: str) -> None:
    publish(client, topic, "a", "b")
    (first,) = receive(client, topic)["messages"]
    (second,) = receive(client, topic, visibility_timeout_ms=1)["messages"]
    (again,) = receive(client, topic, wait_ms=30_000)["messages"]
    assert again["value"] == "b", "its lease was over"
    publish(client, topic, "c")
    told = receive(client, topic, 207, ack=[first["receipt"], second["receipt"]])
    assert told["messages"] == []
    assert told["acked"][0]["status"] == "done"
    assert told["acked"][1]["status"] != "done"
    (third,) = receive(client, topic, wait_ms=30_000)["messages"]
    assert (third["value"], third["delivery_count"]) == ("c", 1), "as if nobody had had it"


def test_a_group_that_is_not_there_is_not_begun_by_an_ack(door: DoorInThread, client: httpx.Client, topic: str) -> None:
    publish(client, topic, "a")
    answer = client.post(f"/v1/queues/{topic}/receive", json={"group": "g", "ack": [f"{topic}:0:0:1:abcdefghijkl"]})
    assert answer.status_code in {207, 404}
    assert client.get(f"/v1/queues/{topic}").json()["groups"] == []


def test_a_long_wait_begins_when_the_ack_is_safe(client: httpx.Client, topic: str) -> None:
    publish(client, topic, "a")
    (first,) = receive(client, topic)["messages"]
    told = receive(client, topic, ack=[first["receipt"]], wait_ms=50)
    assert told["messages"] == []
    assert [each["status"] for each in told["acked"]] == ["done"]
    assert receive(client, topic, wait_ms=0)["messages"] == []
