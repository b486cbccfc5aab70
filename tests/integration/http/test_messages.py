"""Publishing and reading messages over REST."""

from __future__ import annotations

import base64
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import httpx
import pytest

from penstock.doors.rest import HttpConfig
from penstock.records import Codec, Record, encode_batch, key_hash

from .conftest import DoorInThread, OpenDoor


def _read(client: httpx.Client, topic: str, **query: object) -> dict[str, object]:
    answer = client.get(f"/v1/topics/{topic}/messages", params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, object] = answer.json()
    return page


def test_a_published_message_is_read_back(client: httpx.Client, topic: str) -> None:
    receipt = client.post(
        f"/v1/topics/{topic}/publish", json={"key": "k", "value": "v", "headers": {"a": "1", "b": ["2", None]}}
    ).json()
    assert list(receipt) == ["topic", "partition", "offset", "timestamp"]
    assert receipt["partition"] == key_hash(b"k") % 3, "keys land where Java's client puts them"
    page = _read(client, topic, partition=receipt["partition"])
    assert page["messages"] == [
        {
            "offset": 0,
            "timestamp": receipt["timestamp"],
            "key": "k",
            "value": "v",
            "headers": {"a": "1", "b": ["2", None]},
        }
    ]
    assert datetime.fromisoformat(receipt["timestamp"]).tzinfo is not None
    assert (page["next_offset"], page["high_watermark"], page["log_start_offset"]) == (1, 1, 0)


def test_what_is_not_text_has_a_base64_twin(client: httpx.Client, topic: str) -> None:
    data = base64.b64encode(b"\xff\x00").decode()
    client.post(
        f"/v1/topics/{topic}/publish",
        json={"key_base64": data, "value_base64": data, "headers_base64": {"h": [data, data]}, "partition": 0},
    )
    (message,) = _read(client, topic, partition=0)["messages"]  # type: ignore[misc]
    assert (message["key_base64"], message["value_base64"]) == (data, data)
    assert message["headers_base64"] == {"h": [data, data]}
    assert not {"key", "value"} & set(message)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ('{"a" : 1.50, "b": [ true, null ]}', '{"a":1.50,"b":[true,null]}'),
        ("12345678901234567890123", "12345678901234567890123"),
        ('"text \\u00e9"', "text é"),
        ("null", None),
        ("false", "false"),
        ('""', ""),
    ],
)
def test_json_values_are_kept_as_their_compact_text(
    client: httpx.Client, topic: str, sent: str, stored: str | None
) -> None:
    client.post(f"/v1/topics/{topic}/publish", content=f'{{"value": {sent}, "partition": 0}}')
    (message,) = _read(client, topic)["messages"]  # type: ignore[misc]
    assert message["value"] == stored


def test_the_first_message_makes_the_topic_where_that_is_allowed(open_door: OpenDoor) -> None:
    strict = open_door(auto_create_topics=False).client
    refused = strict.post("/v1/topics/orders/publish", json={"value": "x"})
    assert (refused.status_code, refused.json()["code"]) == (404, "unknown_topic")
    assert "retry-after" not in refused.headers


def test_many_first_messages_at_once_are_all_kept(door: DoorInThread, topic: str) -> None:
    def publish(number: int) -> int:
        return door.client.post(f"/v1/topics/{topic}/publish", json={"value": str(number)}).status_code

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(publish, range(64))) == {200}
    assert door.client.get(f"/v1/topics/{topic}").json()["messages"] == 64


def test_messages_without_a_key_take_turns(client: httpx.Client, topic: str) -> None:
    partitions = [client.post(f"/v1/topics/{topic}/publish", json={"value": "x"}).json()["partition"] for _ in range(6)]
    assert sorted(partitions) == [0, 0, 1, 1, 2, 2]


def test_the_partitioner_can_be_chosen(client: httpx.Client, topic: str) -> None:
    url = f"/v1/topics/{topic}/publish"
    spread = [
        client.post(url, params={"partitioner": "round_robin"}, json={"key": "k", "value": "x"}).json()["partition"]
        for _ in range(3)
    ]
    assert sorted(spread) == [0, 1, 2]
    unknown = client.post(url, params={"partitioner": "psychic"}, json={"value": "x"})
    assert unknown.status_code == 422
    assert "key_hash" in unknown.json()["detail"]


def test_a_batch_keeps_its_order_within_a_partition(client: httpx.Client, topic: str) -> None:
    messages = [{"value": str(number), "partition": 1} for number in range(500)]
    receipt = client.post(f"/v1/topics/{topic}/batch", json={"messages": messages}).json()
    assert (receipt["published"], receipt["failed"]) == (500, 0)
    assert [item["offset"] for item in receipt["results"]] == list(range(500))
    page = _read(client, topic, partition=1, limit=1000)
    assert [message["value"] for message in page["messages"]] == [str(number) for number in range(500)]  # type: ignore[attr-defined]


def test_a_batch_larger_than_the_topics_limit_is_split(client: httpx.Client, topic: str) -> None:
    client.post("/v1/topics", json={"name": topic, "partitions": 1, "configs": {"max.message.bytes": 2000}})
    messages = [{"value": "x" * 700} for _ in range(5)] + [{"value": "y" * 5000}, {"value": "after"}]
    answer = client.post(f"/v1/topics/{topic}/batch", json={"messages": messages})
    assert answer.status_code == 207
    results = answer.json()["results"]
    assert [item.get("offset") for item in results] == [0, 1, 2, 3, 4, None, 5]
    assert results[5]["error"]["code"] == "message_too_large"


def test_the_failures_of_a_batch_are_told_message_by_message(client: httpx.Client, topic: str) -> None:
    client.post("/v1/topics", json={"name": topic, "partitions": 2, "configs": {"cleanup.policy": "compact"}})
    answer = client.post(
        f"/v1/topics/{topic}/batch",
        json={
            "messages": [
                {"key": "a", "value": "1", "partition": 0},
                {"value": "no key", "partition": 0},
                {"key": "a", "value": "2", "partition": 9},
            ]
        },
    )
    assert answer.status_code == 207
    body = answer.json()
    assert (body["published"], body["failed"]) == (1, 2)
    assert [item.get("error", {}).get("code") for item in body["results"]] == [
        None,
        "invalid_record",
        "unknown_partition",
    ]
    metrics = client.get("/metrics").text
    assert f'penstock_produce_errors_total{{code="invalid_record",topic="{topic}"}} 1.0' in metrics


def test_a_batch_of_which_nothing_was_published_is_an_error(client: httpx.Client, topic: str) -> None:
    answer = client.post(f"/v1/topics/{topic}/batch", json={"messages": [{"value": "x", "partition": 99}]})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_partition")


def test_a_message_too_large_for_its_topic_is_refused(client: httpx.Client, topic: str) -> None:
    answer = client.post(f"/v1/topics/{topic}/publish", json={"value": "x" * 1_100_000})
    assert (answer.status_code, answer.json()["code"]) == (413, "message_too_large")


def test_reading_goes_on_where_it_ended(client: httpx.Client, topic: str) -> None:
    client.post(f"/v1/topics/{topic}/batch", json={"messages": [{"value": str(n), "partition": 0} for n in range(25)]})
    seen: list[str] = []
    offset: object = "earliest"
    while len(seen) < 25:
        page = _read(client, topic, offset=offset, limit=10)
        seen += [message["value"] for message in page["messages"]]  # type: ignore[attr-defined]
        offset = page["next_offset"]
    assert seen == [str(n) for n in range(25)]
    assert _read(client, topic, offset="latest")["messages"] == []


def test_an_answer_is_bounded_in_bytes(open_door: OpenDoor) -> None:
    client = open_door(HttpConfig(port=0, read_bytes_max=10_000)).client
    for _ in range(5):
        client.post("/v1/topics/t/publish", json={"value": "x" * 4000, "partition": 0})
    page = _read(client, "t")
    assert len(page["messages"]) == 3  # type: ignore[arg-type]
    assert len(_read(client, "t", offset=page["next_offset"])["messages"]) == 2  # type: ignore[arg-type]


def test_compressed_batches_of_other_clients_are_read(door: DoorInThread, topic: str) -> None:
    door.client.post("/v1/topics", json={"name": topic, "partitions": 1})
    batch = encode_batch([Record(n, -1, None, b"%d" % n) for n in range(10)], codec=Codec.ZSTD)
    door.look(lambda broker: broker.partition(topic, 0).append(memoryview(batch), 0, is_durable=False))
    messages = _read(door.client, topic, offset=4, limit=3)["messages"]
    assert [message["value"] for message in messages] == ["4", "5", "6"]  # type: ignore[attr-defined]
    assert messages[0]["timestamp"] is None  # type: ignore[index]


def test_a_batch_that_cannot_be_decoded_is_named_and_can_be_stepped_over(door: DoorInThread, topic: str) -> None:
    door.client.post("/v1/topics", json={"name": topic, "partitions": 1})
    bad = encode_batch([Record(0, 0, None, b"x" * 50)], codec=Codec.GZIP)
    bad[61:71] = b"\xff" * 10
    from penstock.records.header import seal

    seal(bad)
    door.look(lambda broker: broker.partition(topic, 0).append(memoryview(bad), 0, is_durable=False))
    door.client.post(f"/v1/topics/{topic}/publish", json={"value": "good"})
    answer = door.client.get(f"/v1/topics/{topic}/messages")
    assert (answer.status_code, answer.json()["code"]) == (500, "corrupt_records")
    assert "Read on from offset 1" in answer.json()["detail"]
    assert _read(door.client, topic, offset=1)["messages"][0]["value"] == "good"  # type: ignore[index]


def test_a_waiting_reader_gets_the_message_when_it_comes(door: DoorInThread, topic: str) -> None:
    door.client.post("/v1/topics", json={"name": topic, "partitions": 1})
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read, door.client, topic, offset="latest", timeout_ms=20_000)
        _until(lambda: _watchers(door, topic) == 1)
        door.client.post(f"/v1/topics/{topic}/publish", json={"value": "here"})
        page = reading.result(60)
    assert [message["value"] for message in page["messages"]] == ["here"]  # type: ignore[attr-defined]
    assert _watchers(door, topic) == 0


def test_a_reader_who_waits_in_vain_gets_an_empty_page(client: httpx.Client, topic: str) -> None:
    client.post("/v1/topics", json={"name": topic})
    page = _read(client, topic, timeout_ms=50)
    assert (page["messages"], page["next_offset"]) == ([], 0)


def test_a_reader_who_goes_away_leaves_nothing_behind(door: DoorInThread, topic: str) -> None:
    door.client.post("/v1/topics", json={"name": topic, "partitions": 1})
    patience = httpx.Timeout(60, read=0.2)
    with httpx.Client(base_url=door.client.base_url, timeout=patience) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.get(f"/v1/topics/{topic}/messages?timeout_ms=60000")
    _until(lambda: _watchers(door, topic) == 0)


def test_deleting_the_topic_ends_the_wait(door: DoorInThread, topic: str) -> None:
    door.client.post("/v1/topics", json={"name": topic, "partitions": 1})
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(door.client.get, f"/v1/topics/{topic}/messages?timeout_ms=20000")
        _until(lambda: _watchers(door, topic) == 1)
        door.client.delete(f"/v1/topics/{topic}")
        assert reading.result(60).status_code == 404


def test_stopping_the_node_ends_the_wait_with_an_empty_page(open_door: OpenDoor) -> None:
    door = open_door()
    door.client.post("/v1/topics", json={"name": "t", "partitions": 1})
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(door.client.get, "/v1/topics/t/messages?timeout_ms=60000")
        _until(lambda: _watchers(door, "t") == 1)
        begun = time.monotonic()
        door.run(door.server.stop())
        assert time.monotonic() - begun < 20
        assert reading.result(60).json()["messages"] == []


def _watchers(door: DoorInThread, topic: str) -> int:
    return door.look(lambda broker: len(broker.partition(topic, 0)._watchers))


def _until(holds: object) -> None:
    pause = threading.Event()
    for _ in range(6_000):
        if holds():  # type: ignore[operator]
            return
        pause.wait(0.01)
    raise AssertionError("it did not come to pass in a minute")
