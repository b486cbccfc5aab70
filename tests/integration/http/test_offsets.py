"""Ends of many partitions in one call, batches as they are stored, and progress without membership."""

from __future__ import annotations

import time
from typing import Any

import httpx
import msgspec
import pytest

from penstock.records import decode_records, iter_batches


@pytest.fixture
def made(client: httpx.Client, topic: str) -> str:
    client.post("/v1/topics", json={"name": topic, "partitions": 2}).raise_for_status()
    messages = [{"value": f"v{at}", "partition": 0} for at in range(10)]
    client.post(f"/v1/topics/{topic}/batch", json={"messages": messages}).raise_for_status()
    return topic


def batches(client: httpx.Client, topic: str, partition: object = 0, **query: Any) -> httpx.Response:
    return client.get(f"/v1/topics/{topic}/partitions/{partition}/batches", params=query)


def values(answer: httpx.Response) -> list[bytes | None]:
    data = msgspec.msgpack.decode(answer.content)[5]
    found = [data[at : at + header.size] for at, header in iter_batches(data) if not header.is_control]
    return [record.value for batch in found for record in decode_records(batch)]


def test_all_ends_come_in_one_answer(client: httpx.Client, made: str) -> None:
    found = client.post("/v1/offsets", json={"topics": [made, "nowhere"]}).json()
    assert found["missing"] == ["nowhere"]
    (told,) = found["topics"]
    first, second = told["partitions"]
    assert (first["log_start_offset"], first["last_stable_offset"], first["high_watermark"]) == (0, 10, 10)
    assert first["size_bytes"] > 100
    assert (second["partition"], second["log_end_offset"]) == (1, 0)
    by_pattern = client.post("/v1/offsets", json={"pattern": made[:-1] + "."}).json()
    assert [each["topic"] for each in by_pattern["topics"]].count(made) == 1


def test_instants_are_looked_up_along_with_it(client: httpx.Client, made: str) -> None:
    far = int(time.time() * 1000) + 3_600_000
    found = client.post("/v1/offsets", json={"topics": [made], "timestamps_ms": [0, far]}).json()
    assert [at["located"] for at in found["topics"][0]["partitions"]] == [[0, 10], [0, 0]]


def test_it_waits_for_more_than_is_known(client: httpx.Client, made: str) -> None:
    known = [{"topic": made, "partition": 0, "offset": 10}, {"topic": made, "partition": 1, "offset": 0}]
    began = time.monotonic()
    client.post("/v1/offsets", json={"topics": [made], "known": known, "wait_ms": 300}).raise_for_status()
    assert time.monotonic() - began >= 0.29
    began = time.monotonic()
    known[0]["offset"] = 9
    client.post("/v1/offsets", json={"topics": [made], "known": known, "wait_ms": 60_000}).raise_for_status()
    client.post("/v1/offsets", json={"topics": [made], "known": known[:1], "wait_ms": 60_000}).raise_for_status()
    assert time.monotonic() - began < 50


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 422), ({"topics": ["a"], "wait_ms": -1}, 422), ({"topics": ["a"], "more": 1}, 422), ({"pattern": "("}, 422)],
)
def test_questions_that_make_no_sense_are_refused(client: httpx.Client, body: dict[str, Any], status: int) -> None:
    assert client.post("/v1/offsets", json=body).status_code == status


def test_batches_come_as_they_are_from_the_one_that_holds_the_offset(client: httpx.Client, made: str) -> None:
    answer = batches(client, made, offset=4)
    assert answer.headers["content-type"] == "application/vnd.penstock+msgpack"
    _, end, start, watermark, stable, _ = msgspec.msgpack.decode(answer.content)
    assert (end, start, watermark, stable) == (10, 0, 10, 10)
    assert values(answer)[-1] == b"v9"
    assert values(batches(client, made, offset=10)) == []


def test_isolation_decides_what_is_seen_of_transactions(client: httpx.Client, made: str) -> None:
    opened = client.post("/v1/transactions", json={}).json()["transaction"]
    ticket = {"penstock-transaction": opened}
    body = {"value": "aborted", "partition": 1}
    client.post(f"/v1/topics/{made}/publish", json=body, headers=ticket).raise_for_status()
    assert values(batches(client, made, 1)) == []
    assert values(batches(client, made, 1, isolation="read_uncommitted")) == [b"aborted"]
    client.post(f"/v1/transactions/{opened}/abort").raise_for_status()
    client.post(f"/v1/topics/{made}/publish", json={"value": "plain", "partition": 1}).raise_for_status()
    assert values(batches(client, made, 1)) == [b"plain"]
    assert values(batches(client, made, 1, isolation="read_uncommitted")) == [b"aborted", b"plain"]


@pytest.mark.parametrize(
    ("partition", "query", "told"),
    [
        (0, {"offset": 11}, (416, "offset_out_of_range")),
        (0, {"offset": -1}, (400, "invalid_parameter")),
        (0, {"max_bytes": 0}, (400, "invalid_parameter")),
        (0, {"isolation": "none"}, (400, "invalid_parameter")),
        (0, {"topic_id": "another"}, (404, "unknown_topic")),
        (7, {}, (404, "unknown_partition")),
        ("x", {}, (400, "invalid_parameter")),
    ],
)
def test_what_is_not_there_is_refused(
    client: httpx.Client, made: str, partition: object, query: dict[str, Any], told: tuple[int, str]
) -> None:
    answer = batches(client, made, partition, **query)
    assert (answer.status_code, answer.json()["code"]) == told


def test_a_reader_that_is_no_member_is_a_group_with_a_lag(client: httpx.Client, made: str) -> None:
    path = f"/v1/groups/reader-of-{made}"
    topic_id = client.get(f"/v1/topics/{made}").json()["topic_id"]
    place = {"topic": made, "partition": 0, "offset": 4, "topic_id": topic_id}
    assert client.post(f"{path}/offsets", json={"offsets": [place]}).json() == {"committed": 1}
    group = client.get(path).json()
    assert (group["state"], group["members"], group["lag"]) == ("Empty", 0, 6)
    for wrong, status in (
        ({"topic": "nowhere"}, 404),
        ({"partition": 9}, 404),
        ({"topic_id": "another"}, 404),
        ({"offset": -1}, 422),
        ({"offset": 11}, 416),  # the partition ends at 10
    ):
        assert client.post(f"{path}/offsets", json={"offsets": [{**place, **wrong}]}).status_code == status
    assert client.post(f"{path}/offsets", json={"offsets": []}).status_code == 422
