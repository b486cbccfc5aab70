"""Topics over REST, from creation to deletion."""

from __future__ import annotations

import httpx
import pytest


def test_a_topic_is_created_described_and_listed(client: httpx.Client, topic: str) -> None:
    made = client.post("/v1/topics", json={"name": topic, "partitions": 2, "configs": {"retention.ms": 60000}})
    assert made.status_code == 201
    assert made.headers["location"] == f"/v1/topics/{topic}"
    detail = client.get(made.headers["location"]).json()
    assert detail == made.json()
    assert detail["partitions"] == len(detail["partition_details"]) == 2
    assert detail["configs"] == {"retention.ms": "60000"}
    assert detail["settings"]["segment.bytes"] == str(64 * 1024 * 1024)
    assert topic in [listed["name"] for listed in client.get("/v1/topics").json()["topics"]]


def test_a_topic_is_created_only_once(client: httpx.Client, topic: str) -> None:
    assert client.post("/v1/topics", json={"name": topic}).status_code == 201
    again = client.post("/v1/topics", json={"name": topic})
    assert again.status_code == 409
    assert again.json()["code"] == "topic_exists"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "no spaces"}, "invalid_topic_name"),
        ({"name": ""}, "invalid_topic_name"),
        ({"name": "x", "configs": {"retention.mss": "1"}}, "invalid_config"),
        ({"name": "x", "configs": {"retention.ms": "soon"}}, "invalid_config"),
        ({"name": "x", "replication_factor": 3}, "invalid_replication_factor"),
        ({"name": "x", "partitions": 0}, "invalid_body"),
        ({"name": "x", "partitions": "3"}, "invalid_body"),
        ({"name": "x", "partition": 3}, "invalid_body"),
        ({}, "invalid_body"),
    ],
)
def test_a_bad_topic_is_refused_and_not_made(client: httpx.Client, body: dict[str, object], code: str) -> None:
    answer = client.post("/v1/topics", json=body)
    assert answer.status_code == 422
    assert answer.json()["code"] == code
    assert client.get("/v1/topics/x").status_code == 404


def test_settings_are_set_and_unset(client: httpx.Client, topic: str) -> None:
    client.post("/v1/topics", json={"name": topic, "configs": {"retention.ms": "1"}})
    changed = client.patch(f"/v1/topics/{topic}", json={"configs": {"retention.ms": None, "cleanup.policy": "compact"}})
    assert changed.status_code == 200
    assert changed.json()["configs"] == {"cleanup.policy": "compact"}


def test_one_bad_setting_leaves_all_as_they_were(client: httpx.Client, topic: str) -> None:
    client.post("/v1/topics", json={"name": topic})
    refused = client.patch(f"/v1/topics/{topic}", json={"configs": {"retention.ms": "5", "nonsense": "1"}})
    assert refused.status_code == 422
    assert client.get(f"/v1/topics/{topic}").json()["configs"] == {}


def test_partitions_are_added_but_never_removed(client: httpx.Client, topic: str) -> None:
    client.post("/v1/topics", json={"name": topic, "partitions": 1})
    grown = client.post(f"/v1/topics/{topic}/partitions", json={"partitions": 4})
    assert grown.status_code == 200
    assert grown.json()["partitions"] == 4
    shrunk = client.post(f"/v1/topics/{topic}/partitions", json={"partitions": 2})
    assert (shrunk.status_code, shrunk.json()["code"]) == (422, "invalid_partitions")


def test_a_deleted_topic_is_gone(client: httpx.Client, topic: str) -> None:
    client.post("/v1/topics", json={"name": topic})
    gone = client.delete(f"/v1/topics/{topic}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert client.get(f"/v1/topics/{topic}").json()["code"] == "unknown_topic"
    assert client.delete(f"/v1/topics/{topic}").status_code == 404


@pytest.mark.parametrize("method", ["DELETE", "PATCH"])
def test_the_brokers_own_topics_cannot_be_touched(client: httpx.Client, method: str) -> None:
    answer = client.request(method, "/v1/topics/__consumer_offsets", json={"configs": {}})
    assert (answer.status_code, answer.json()["code"]) == (403, "policy_violation")
    assert client.post("/v1/topics", json={"name": "__consumer_offsets"}).status_code == 403
    assert client.post("/v1/topics/__consumer_offsets/publish", json={"value": "x"}).status_code == 403
