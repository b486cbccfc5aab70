"""The REST door of queues, as tests knock at it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import httpx
from tests.support.node import Node

MSGPACK = "application/vnd.penstock+msgpack"


class Door:
    """REST as a worker would use it."""

    def __init__(self, node: Node) -> None:
        self.client = httpx.Client(base_url=node.http_url, timeout=70)

    def create(self, topic: str, partitions: int = 1, **configs: object) -> None:
        body = {"name": topic, "partitions": partitions, "configs": configs}
        assert self.client.post("/v1/topics", json=body).status_code == 201

    def publish(self, topic: str, *values: str, key: str | None = None) -> None:
        messages = [{"value": value} if key is None else {"value": value, "key": key} for value in values]
        answer = self.client.post(f"/v1/topics/{topic}/batch", json={"messages": messages})
        assert answer.status_code == 200, answer.text

    def call(self, topic: str, verb: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/v1/queues/{topic}/{verb}", json=body)

    def receive(self, topic: str, **body: Any) -> list[dict[str, Any]]:
        answer = self.call(topic, "receive", **body)
        assert answer.status_code == 200, answer.text
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages

    def statuses(self, topic: str, verb: str, receipts: Sequence[str], **body: Any) -> list[str]:
        answer = self.call(topic, verb, receipts=list(receipts), **body)
        assert answer.status_code in {200, 207}, answer.text
        found = [result["status"] for result in answer.json()["results"]]
        assert (answer.status_code == 200) == all(status == "done" for status in found)
        return found

    def group(self, topic: str, group: str = "default") -> dict[str, Any]:
        answer = self.client.get(f"/v1/queues/{topic}/groups/{group}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def drain(self, topic: str, count: int, patience_s: float = 90.0, **body: Any) -> list[str]:
        """Receive and ack until there are as many, and no more for a moment."""
        values: list[str] = []
        deadline = time.monotonic() + patience_s
        while len(values) < count:
            assert time.monotonic() < deadline, f"only {len(values)} of {count} came"
            messages = self.receive(topic, max=100, wait_ms=1_000, **body)
            values += [message["value"] for message in messages]
            if messages:
                group = {"group": body["group"]} if "group" in body else {}
                receipts = [message["receipt"] for message in messages]
                assert set(self.statuses(topic, "ack", receipts, **group)) == {"done"}
        assert self.receive(topic, wait_ms=300, **body) == []
        return values


def receipts_of(messages: list[dict[str, Any]]) -> list[str]:
    return [message["receipt"] for message in messages]


def code_of(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]
