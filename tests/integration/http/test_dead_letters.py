"""Dead letters over a real door: rejected by a consumer, listed, looked at and sent back."""

from __future__ import annotations

import base64
import time
from typing import Any

import httpx
import pytest


def publish(client: httpx.Client, topic: str, *messages: dict[str, Any]) -> None:
    client.post(f"/v1/topics/{topic}/batch", json={"messages": list(messages)}).raise_for_status()


def receive(client: httpx.Client, topic: str, count: int) -> list[dict[str, Any]]:
    body = {"group": "workers", "max": count, "wait_ms": 5_000}
    found: list[dict[str, Any]] = client.post(f"/v1/queues/{topic}/receive", json=body).json()["messages"]
    return found


def reject(client: httpx.Client, topic: str, count: int, reason: str) -> None:
    """Have the next messages rejected, and wait until they are dead letters."""
    before = len(letters(client, topic))
    receipts = [message["receipt"] for message in receive(client, topic, count)]
    assert len(receipts) == count
    body = {"group": "workers", "receipts": receipts, "reason": reason}
    client.post(f"/v1/queues/{topic}/reject", json=body).raise_for_status()
    deadline = time.monotonic() + 60
    while len(letters(client, topic)) < before + count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def letters(client: httpx.Client, topic: str, **params: Any) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/queues/{topic}/dead-letters", params=params)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["dead_letters"]
    return found


@pytest.fixture
def graves(client: httpx.Client, topic: str) -> str:
    """A topic with three dead letters of two reasons."""
    client.post("/v1/topics", json={"name": topic, "partitions": 1}).raise_for_status()
    publish(client, topic, {"key": "a", "value": "1", "headers": {"trace": "t"}}, {"key": "b", "value": {"n": 2}})
    reject(client, topic, 2, "no such customer")
    publish(client, topic, {"value_base64": base64.b64encode(b"\xff\xfe").decode()})
    reject(client, topic, 1, "cannot be read")
    return topic


def test_a_dead_letter_shows_the_message_and_where_it_came_from(client: httpx.Client, graves: str) -> None:
    first, _, third = letters(client, graves)
    assert {name: first[name] for name in ("partition", "offset", "key", "value", "headers", "group", "tries")} == {
        "partition": 0,
        "offset": 0,
        "key": "a",
        "value": "1",
        "headers": {"trace": "t"},
        "group": "workers",
        "tries": 1,
    }
    assert first["origin"] | {"timestamp": None} == {"topic": graves, "partition": 0, "offset": 0, "timestamp": None}
    assert (first["is_redriven"], first["times_redriven"], first["reason"]) == (False, 0, "no such customer")
    assert base64.b64decode(third["value_base64"]) == b"\xff\xfe"
    assert client.get(f"/v1/queues/{graves}/dead-letters/0/2").json() == third
    for place in ("0/3", "9/0", "x/0", "0/-1", "0/99999999999999999999"):
        answer = client.get(f"/v1/queues/{graves}/dead-letters/{place}")
        assert (answer.status_code, answer.json()["code"]) == (404, "dead_letter_not_found"), place


def test_dead_letters_are_filtered_paged_and_grouped(client: httpx.Client, graves: str) -> None:
    assert [each["offset"] for each in letters(client, graves, reason_contains="CUSTOMER")] == [0, 1]
    assert [each["offset"] for each in letters(client, graves, key="b", origin_partition=0, first_offset=1)] == [1]
    assert letters(client, graves, group="nobody") == []
    assert letters(client, graves, until="2020-01-01T00:00:00Z") == []
    page = client.get(f"/v1/queues/{graves}/dead-letters", params={"limit": 2}).json()
    assert (len(page["dead_letters"]), page["scanned"], page["total"], page["topic"]) == (2, 2, 3, f"{graves}.dlq")
    rest = client.get(f"/v1/queues/{graves}/dead-letters", params={"limit": 2, "cursor": page["cursor"]}).json()
    assert ([each["offset"] for each in rest["dead_letters"]], rest["cursor"]) == ([2], None)
    found = client.get(f"/v1/queues/{graves}/dead-letters/reasons").json()
    assert [(each["reason"], each["count"], each["sample"]["offset"]) for each in found["reasons"]] == [
        ("no such customer", 2, 0),
        ("cannot be read", 1, 2),
    ]
    assert found["is_complete"]


@pytest.mark.parametrize(
    ("params", "status"),
    [({"limit": 0}, 400), ({"nonsense": 1}, 400), ({"since": "yesterday"}, 400), ({"cursor": "0:x"}, 422)],
)
def test_bad_questions_are_told_so(client: httpx.Client, graves: str, params: dict[str, Any], status: int) -> None:
    assert client.get(f"/v1/queues/{graves}/dead-letters", params=params).status_code == status


def test_a_topic_that_is_not_there_has_no_dead_letters(client: httpx.Client) -> None:
    for path in ("dead-letters", "dead-letters/reasons", "redrives"):
        answer = client.get(f"/v1/queues/nothing/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_topic")
    assert client.post("/v1/queues/nothing/redrive").status_code == 404


def test_a_redrive_is_rehearsed_done_and_on_record(client: httpx.Client, graves: str) -> None:
    body: dict[str, Any] = {"filter": {"reason": "no such customer"}, "dry_run": True}
    found = client.post(f"/v1/queues/{graves}/redrive", json=body).json()["dry_run"]
    assert (found["matched"], found["targets"], found["stranded"]) == (2, {graves: 2}, 0)
    assert [each["offset"] for each in found["samples"]] == [0, 1]
    assert len(letters(client, graves)) == 3
    body |= {"dry_run": False, "wait_ms": 10_000, "by": "ada"}
    answer = client.post(f"/v1/queues/{graves}/redrive", json=body)
    redrive = answer.json()["redrive"]
    assert (answer.status_code, redrive["state"], redrive["moved"], redrive["failed"]) == (200, "done", 2, 0)
    assert redrive["by"].startswith("ada (")
    assert [each["offset"] for each in letters(client, graves)] == [2]
    assert client.get(f"/v1/queues/{graves}").json()["dead_letters"] == 1
    again = letters(client, graves, include_redriven=True)
    assert [each["is_redriven"] for each in again] == [True, True, False]
    back = receive(client, graves, 10)
    assert [(each["key"], each["value"], each["headers"]) for each in back] == [
        ("a", "1", {"trace": "t", "penstock-redriven": "1"}),
        ("b", '{"n":2}', {"penstock-redriven": "1"}),
    ]
    record = client.get(f"/v1/queues/{graves}/redrives").json()["redrives"]
    assert [each["id"] for each in record] == [redrive["id"]]
    assert record[0]["filter"]["reason"] == "no such customer"
    assert client.get(f"/v1/queues/{graves}/redrives/{redrive['id']}").json() == record[0]
    assert client.get(f"/v1/queues/{graves}/redrives/none").json()["code"] == "redrive_not_found"


def test_a_slow_redrive_is_told_of_and_cancelled(client: httpx.Client, graves: str) -> None:
    answer = client.post(f"/v1/queues/{graves}/redrive", json={"rate": 0.1})
    assert answer.status_code == 202
    redrive = answer.json()["redrive"]["id"]
    second = client.post(f"/v1/queues/{graves}/redrive", json={})
    assert (second.status_code, second.json()["code"]) == (409, "redrive_running")
    client.post(f"/v1/queues/{graves}/redrives/{redrive}/cancel").raise_for_status()
    deadline = time.monotonic() + 60
    while (state := client.get(f"/v1/queues/{graves}/redrives/{redrive}").json()["state"]) != "cancelled":
        assert time.monotonic() < deadline, state
        time.sleep(0.01)
    assert 2 <= len(letters(client, graves)) <= 3


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"rate": 0}, 422),
        ({"rate": -1}, 422),
        ({"limit": 0}, 422),
        ({"target": "no-such-topic"}, 404),
        ({"target": "__consumer_offsets"}, 422),
        ({"filter": {"places": []}}, 422),
        ({"filter": {"key": "a", "key_base64": "YQ=="}}, 400),
        ({"filter": {"nonsense": 1}}, 422),
        ({"nonsense": 1}, 422),
    ],
)
def test_bad_redrives_are_refused(client: httpx.Client, graves: str, body: dict[str, Any], status: int) -> None:
    answer = client.post(f"/v1/queues/{graves}/redrive", json=body)
    assert answer.status_code == status, answer.text
    assert client.get(f"/v1/queues/{graves}/redrives").json()["redrives"] == []


def test_nobody_else_writes_to_the_ledger_of_redrives(client: httpx.Client, graves: str) -> None:
    client.post(f"/v1/queues/{graves}/redrive", json={"wait_ms": 5_000}).raise_for_status()
    answer = client.post("/v1/topics/__redrives/publish", json={"value": "x"})
    assert answer.status_code == 403
