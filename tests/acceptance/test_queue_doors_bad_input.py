"""What the doors of queues refuse, and how they say so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.node import Node
from tests.support.queue_door import Door, code_of, receipts_of


@pytest.fixture(scope="module")
def door(node: Node) -> Iterator[Door]:
    opened = Door(node)
    yield opened
    opened.client.close()


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_stale_forged_foreign_and_repeated_receipts_are_told_and_harm_nobody(door: Door, topic: str) -> None:
    door.create(topic)
    other = f"{topic}-other"
    door.create(other)
    door.publish(topic, "a", "b")
    door.publish(other, "c")
    old, kept = receipts_of(door.receive(topic, visibility_timeout_ms=200))
    (elsewhere,) = receipts_of(door.receive(other))
    time.sleep(1)
    assert door.statuses(topic, "ack", [old]) == ["lease_over"]
    new = receipts_of(door.receive(topic, wait_ms=20_000))
    assert len(new) == 2
    forged = new[0][:-1] + ("0" if new[0][-1] != "0" else "1")
    found = door.statuses(topic, "ack", [kept, forged, elsewhere, "nonsense", "", new[0], new[0]])
    assert found == ["redelivered", "unknown", "foreign", "malformed", "malformed", "done", "repeated"]
    assert door.statuses(topic, "ack", [new[0]]) == ["already_acked"]
    for verb in ("nack", "reject", "extend", "release"):
        assert door.statuses(topic, verb, [new[0], forged]) == ["already_acked", "unknown"]
    assert door.statuses(topic, "ack", [new[1]]) == ["done"]
    # Of another group: it never gave out such a receipt.
    (theirs,) = receipts_of(door.receive(other, group="theirs"))
    assert door.statuses(other, "ack", [elsewhere], group="theirs") == ["unknown"]
    assert door.statuses(other, "ack", [theirs], group="theirs") == ["done"]
    assert door.statuses(other, "ack", [elsewhere]) == ["done"]


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("receive", {"max": 0}),
        ("receive", {"max": -1}),
        ("receive", {"max": 1_000_000}),
        ("receive", {"max": "10"}),
        ("receive", {"wait_ms": -1}),
        ("receive", {"wait_ms": 10**12}),
        ("receive", {"visibility_timeout_ms": 0}),
        ("receive", {"visibility_timeout_ms": -5}),
        ("receive", {"visibility_timeout_ms": 10**15}),
        ("receive", {"visibility_timeout_ms": 10**30}),
        ("receive", {"max_bytes": 0}),
        ("receive", {"group": ""}),
        ("receive", {"group": "g" * 300}),
        ("receive", {"consumer": "c" * 300}),
        ("receive", {"no": "such field"}),
        ("ack", {}),
        ("ack", {"receipts": []}),
        ("ack", {"receipts": "a:0:0:1:x"}),
        ("ack", {"receipts": [1]}),
        ("ack", {"receipts": ["x" * 1_001]}),
        ("ack", {"receipts": ["x"] * 10_001}),
        ("nack", {"receipts": ["x"], "delay_ms": -1}),
        ("nack", {"receipts": ["x"], "delay_ms": 10**15}),
        ("nack", {"receipts": ["x"], "reason": "r" * 1_001}),
        ("extend", {"receipts": ["x"], "visibility_timeout_ms": -1}),
        ("extend", {"receipts": ["x"], "visibility_timeout_ms": 10**15}),
        ("purge", {"group": 5}),
    ],
)
def test_input_out_of_range_is_refused_before_anything_happens(door: Door, verb: str, body: dict[str, Any]) -> None:
    name = "bad-input"
    if door.client.get(f"/v1/topics/{name}").status_code == 404:
        door.create(name)
    assert code_of(door.call(name, verb, **body)) == (422, "invalid_body")


def test_unknown_topics_and_groups_are_not_found_and_not_made(door: Door, topic: str) -> None:
    for verb, body in (("receive", {}), ("ack", {"receipts": ["x"]}), ("purge", {})):
        assert code_of(door.call(topic, verb, **body)) == (404, "unknown_topic")
    assert code_of(door.client.get(f"/v1/queues/{topic}")) == (404, "unknown_topic")
    assert door.client.get(f"/v1/topics/{topic}").status_code == 404
    door.create(topic)
    path = f"/v1/queues/{topic}/groups/nobody"
    for method, tail, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("GET", "/peek", None),
        ("POST", "/pause", {}),
        ("POST", "/resume", None),
        ("POST", "/seek", {"to": 0}),
    ):
        assert code_of(door.client.request(method, path + tail, json=body)) == (404, "group_not_found")
    assert code_of(door.call(topic, "purge", group="nobody")) == (404, "group_not_found")
    receipt = f"{topic}:0:0:1:1" + "0" * 16
    assert code_of(door.call(topic, "ack", group="nobody", receipts=[receipt])) == (404, "group_not_found")
    assert door.client.get(f"/v1/queues/{topic}").json()["groups"] == []


def test_the_brokers_own_topics_are_no_queues(door: Door, topic: str) -> None:
    door.create(topic)
    door.publish(topic, "x")
    door.receive(topic)
    for name in (f"__queue.{topic}", "__consumer_offsets"):
        answer = door.call(name, "receive")
        assert answer.status_code in {403, 404}, answer.text


@pytest.mark.parametrize(
    "body",
    [
        {"settings": {"tries": "-1"}},
        {"settings": {"tries": "many"}},
        {"settings": {"no.such.setting": "1"}},
        {"settings": {"visibility.timeout.ms": 0}},
        {"start": -1},
        {"start": "middle"},
        {"start": "earliest", "since": "2026-01-01T00:00:00Z"},
        {"since": "yesterday"},
    ],
)
def test_a_group_is_not_declared_with_settings_that_make_no_sense(door: Door, body: dict[str, Any]) -> None:
    if door.client.get("/v1/topics/bad-groups").status_code == 404:
        door.create("bad-groups")
    answer = door.client.put("/v1/queues/bad-groups/groups/g", json=body)
    assert answer.status_code == 422, answer.text
    assert door.client.get("/v1/queues/bad-groups/groups/g").status_code == 404


def test_oversized_messages_and_bodies_are_refused(door: Door, topic: str) -> None:
    door.create(topic, **{"max.message.bytes": 1_000})
    answer = door.client.post(f"/v1/topics/{topic}/publish", json={"value": "x" * 2_000})
    assert code_of(answer) == (413, "message_too_large")
    huge = b'{"receipts": ["' + b"x" * (17 * 1024 * 1024) + b'"]}'
    assert door.client.post(f"/v1/queues/{topic}/ack", content=huge).status_code == 413
    assert door.receive(topic) == []


def test_pages_of_other_sites_receive_nothing(door: Door, topic: str) -> None:
    door.create(topic)
    headers = {"origin": "http://elsewhere.example"}
    answer = door.client.post(f"/v1/queues/{topic}/receive", json={}, headers=headers)
    assert code_of(answer) == (403, "cross_origin")
