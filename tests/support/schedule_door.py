"""Schedules of a real node, looked at over REST."""

from __future__ import annotations

import time
from typing import Any

import httpx
from tests.support.cluster import eventually

FAR = "2099-12-31T23:59:59Z"
FAR_MS = 4_102_444_799_000


def values_in(rest: httpx.Client, topic: str) -> list[str]:
    return [
        message["value"]
        for message in rest.get(f"/v1/topics/{topic}/messages", params={"limit": 1000}).json()["messages"]
    ]


def await_values(rest: httpx.Client, topic: str, count: int, patience_s: float = 60.0) -> list[str]:
    deadline = time.monotonic() + patience_s
    while len(found := values_in(rest, topic)) < count:
        assert time.monotonic() < deadline, f"only {found} of {count} came"
        time.sleep(0.02)
    return found


def await_listed(rest: httpx.Client, topic: str, count: int) -> None:
    """Return once so many schedules are left: what was fired is recorded a moment after its message can be read."""
    eventually(lambda: len(listed(rest, topic)) == count)


def listed(rest: httpx.Client, topic: str, **query: Any) -> list[dict[str, Any]]:
    """All schedules of a topic, page by page."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = rest.get(
            "/v1/schedules", params={"topic": topic, "limit": 3, **query, **({"after": after} if after else {})}
        )
        assert page.status_code == 200, page.text
        found += page.json()["schedules"]
        after = page.json()["next"]
        if not after:
            return found


def code_of(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


def create(rest: httpx.Client, topic: str, **configs: str) -> None:
    assert rest.post("/v1/topics", json={"name": topic, "partitions": 1, "configs": configs}).status_code == 201
