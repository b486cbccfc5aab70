"""Acks in joint transactions over real HTTP: with the commit, or not at all."""

from __future__ import annotations

from typing import Any

import httpx
import pytest


@pytest.fixture
def made(client: httpx.Client, topic: str) -> str:
    for name in (topic, f"{topic}-out"):
        assert client.post("/v1/topics", json={"name": name, "partitions": 1}).status_code == 201
    messages = [{"value": value} for value in "abc"]
    assert client.post(f"/v1/topics/{topic}/batch", json={"messages": messages}).status_code < 300
    return topic


def opened(client: httpx.Client) -> str:
    name: str = client.post("/v1/transactions", json={}).json()["transaction"]
    return name


def received(client: httpx.Client, topic: str, limit: int = 10) -> list[dict[str, Any]]:
    answer = client.post(f"/v1/queues/{topic}/receive", json={"max": limit})
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


def ack_in(client: httpx.Client, name: str, receipts: list[str], **extra: Any) -> httpx.Response:
    headers = {"Penstock-Writer": extra.pop("writer")} if "writer" in extra else {}
    return client.post(f"/v1/transactions/{name}/ack", json={"receipts": receipts, **extra}, headers=headers)


def seen(client: httpx.Client, topic: str) -> list[str]:
    answer = client.get(f"/v1/topics/{topic}-out/messages", params={"partition": 0})
    return [message["value"] for message in answer.json()["messages"]]


def publish(client: httpx.Client, topic: str, value: str, name: str) -> None:
    answer = client.post(
        f"/v1/topics/{topic}-out/publish", json={"value": value}, headers={"Penstock-Transaction": name}
    )
    assert answer.status_code < 300, answer.text


def test_ack_and_publish_stand_together(client: httpx.Client, made: str) -> None:
    receipts = [message["receipt"] for message in received(client, made)]
    name = opened(client)
    answer = ack_in(client, name, receipts)
    assert answer.status_code == 200, answer.text
    assert [result["status"] for result in answer.json()["results"]] == ["done"] * 3
    publish(client, made, "A", name)
    outside = client.post(f"/v1/queues/{made}/ack", json={"receipts": receipts})
    assert outside.status_code == 207
    assert {result["status"] for result in outside.json()["results"]} == {"in_transaction"}
    assert seen(client, made) == []
    assert client.post(f"/v1/transactions/{name}/commit", json={}).json()["state"] == "committed"
    assert seen(client, made) == ["A"]
    after = client.post(f"/v1/queues/{made}/ack", json={"receipts": receipts})
    assert {result["status"] for result in after.json()["results"]} == {"already_acked"}


def test_an_abort_takes_back_both(client: httpx.Client, made: str) -> None:
    receipts = [message["receipt"] for message in received(client, made)]
    name = opened(client)
    assert ack_in(client, name, receipts, writer="one").status_code == 200
    publish(client, made, "A", name)
    assert client.post(f"/v1/transactions/{name}/abort").json()["state"] == "aborted"
    assert seen(client, made) == []
    assert client.post(f"/v1/queues/{made}/ack", json={"receipts": receipts}).status_code == 200


def test_what_cannot_be_acked_in_a_transaction_is_told(client: httpx.Client, made: str) -> None:
    (message,) = received(client, made, 1)
    name = opened(client)
    partly = ack_in(client, name, [message["receipt"], "nonsense"])
    assert partly.status_code == 207
    assert [result["status"] for result in partly.json()["results"]] == ["done", "malformed"]
    assert ack_in(client, "f" * 32, [message["receipt"]]).status_code == 404
    assert ack_in(client, name, [message["receipt"]], group="strangers").status_code == 404
    assert ack_in(client, name, []).status_code == 422
    client.post(f"/v1/transactions/{name}/abort")
    over = ack_in(client, name, [message["receipt"]])
    assert (over.status_code, over.json()["code"]) == (409, "transaction_ended")
