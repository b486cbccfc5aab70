"""Record batches over HTTP: appended as they come, with the idempotence and the errors of Kafka's way in."""

from __future__ import annotations

import time
from typing import Any

import httpx
import msgspec
import pytest
from tests.integration.http.conftest import DoorInThread

from penstock.records import Record, decode_records, encode_batch, iter_batches

MSGPACK = "application/vnd.penstock+msgpack"


def batch(*values: bytes, **producer: Any) -> bytes:
    now_ms = int(time.time() * 1000)  # what is old would be deleted by retention
    return bytes(encode_batch([Record(at, now_ms, b"k", value, ()) for at, value in enumerate(values)], **producer))


def send(client: httpx.Client, topic: str, body: object, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    return client.post(f"/v1/topics/{topic}/batches", content=content, headers={"content-type": MSGPACK, **headers})


def results(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == MSGPACK
    return msgspec.msgpack.decode(answer.content)


def values(client: httpx.Client, topic: str, partition: int = 0) -> list[str]:
    page = client.get(f"/v1/topics/{topic}/messages", params={"partition": partition, "limit": 1000}).json()
    return [message["value"] for message in page["messages"]]


@pytest.fixture
def two(client: httpx.Client, topic: str) -> str:
    assert client.post("/v1/topics", json={"name": topic, "partitions": 2}).status_code == 201
    return topic


def test_batches_are_appended_in_order_each_to_its_partition(client: httpx.Client, two: str) -> None:
    sent = [[0, batch(b"a", b"b")], [1, batch(b"x")], [0, batch(b"c")]]
    assert results(send(client, two, sent)) == [[0, -1], [0, -1], [2, -1]]
    assert values(client, two) == ["a", "b", "c"]
    assert values(client, two, 1) == ["x"]


def test_append_time_is_told_where_the_topic_stamps_it(client: httpx.Client, topic: str) -> None:
    configs = {"message.timestamp.type": "LogAppendTime"}
    assert client.post("/v1/topics", json={"name": topic, "partitions": 1, "configs": configs}).status_code == 201
    [[offset, stamped_ms]] = results(send(client, topic, [[0, batch(b"a")]]))
    assert offset == 0
    assert stamped_ms > 1_700_000_000_000


def test_no_batches_create_the_topic_and_nothing_else(client: httpx.Client, topic: str) -> None:
    assert results(send(client, topic, [])) == []
    assert client.get(f"/v1/topics/{topic}").status_code == 200


def test_a_repeated_batch_of_an_idempotent_producer_is_written_once(client: httpx.Client, two: str) -> None:
    producer = client.post("/v1/producers").json()
    other = client.post("/v1/producers").json()
    assert producer["producer_id"] != other["producer_id"]
    first = batch(b"a", b"b", **producer, base_sequence=0)
    second = batch(b"c", **producer, base_sequence=2)
    assert results(send(client, two, [[0, first], [0, second]])) == [[0, -1], [2, -1]]
    assert results(send(client, two, [[0, first], [0, second]])) == [[0, -1], [2, -1]]
    assert values(client, two) == ["a", "b", "c"]


def test_a_gap_in_sequence_numbers_is_refused_and_keeps_back_what_is_behind(client: httpx.Client, two: str) -> None:
    producer = client.post("/v1/producers").json()
    sent = [
        [0, batch(b"a", **producer, base_sequence=0)],
        [0, batch(b"gap", **producer, base_sequence=5)],
        [0, batch(b"behind", **producer, base_sequence=6)],
        [1, batch(b"elsewhere", **producer, base_sequence=0)],
    ]
    first, gap, behind, elsewhere = results(send(client, two, sent))
    assert first == [0, -1]
    assert gap[:2] == [-1, "out_of_order_sequence"]
    assert behind[:2] == [-1, "out_of_order_sequence"]
    assert elsewhere == [0, -1]
    assert values(client, two) == ["a"]


def test_each_bad_batch_is_refused_by_itself(client: httpx.Client, topic: str) -> None:
    body = {"name": topic, "partitions": 1, "configs": {"max.message.bytes": "300"}}
    assert client.post("/v1/topics", json=body).status_code == 201
    torn = bytearray(batch(b"torn"))
    torn[-1] ^= 0xFF
    producer = client.post("/v1/producers").json()
    sent = [
        [0, b""],
        [0, b"no batch"],
        [0, batch(b"x" * 400)],
        [0, batch(b"t", **producer, base_sequence=0, is_transactional=True)],
        [7, batch(b"nowhere")],
        [0, batch(b"good")],
        [0, bytes(torn)],
    ]
    found = results(send(client, topic, sent))
    codes = [result[1] for result in found]
    assert codes[2:5] == ["message_too_large", "invalid_record", "unknown_partition"]
    assert found[0][0] == found[1][0] == -1
    assert found[5] == [0, -1]
    assert codes[6] == "corrupt_records"
    assert values(client, topic) == ["good"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "malformed_body"),
        (b"\xc1", 400, "malformed_body"),
        (msgspec.msgpack.encode({"a": 1}), 422, "invalid_body"),
        (msgspec.msgpack.encode([[0]]), 422, "invalid_body"),
        (msgspec.msgpack.encode([[-1, b"x"]]), 422, "invalid_body"),
        (msgspec.msgpack.encode([[1 << 40, b"x"]]), 422, "invalid_body"),
        (msgspec.msgpack.encode([["0", b"x"]]), 422, "invalid_body"),
        (msgspec.msgpack.encode([[0, b"x"]] * 10_001), 422, "invalid_body"),
    ],
)
def test_a_body_of_another_shape_is_refused_whole(
    client: httpx.Client, two: str, body: bytes, status: int, code: str
) -> None:
    answer = send(client, two, body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_only_its_own_media_type_is_taken(client: httpx.Client, two: str) -> None:
    answer = client.post(f"/v1/topics/{two}/batches", json=[])
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


def test_batches_go_into_no_transaction_that_is_not_there_and_no_internal_topic(client: httpx.Client, two: str) -> None:
    assert send(client, two, [[0, batch(b"a")]], **{"penstock-transaction": "t"}).status_code == 404
    assert send(client, "__consumer_offsets", [[0, batch(b"a")]]).status_code == 403
    assert values(client, two) == []


def test_what_is_sent_is_counted(door: DoorInThread, two: str) -> None:
    results(send(door.client, two, [[0, batch(b"a", b"b")], [1, b"bad"]]))
    stats = door.look(lambda broker: broker.stats.topic(two))
    assert stats.messages_produced == 2
    assert sum(stats.produce_errors.values()) == 1


# -- polling -----------------------------------------------------------------------------------------------------------


def poll(client: httpx.Client, group: str, member_id: str, **body: Any) -> Any:
    answer = client.post(
        f"/v1/groups/{group}/poll", json={"member_id": member_id, "wait_ms": 5_000, **body}, headers={"accept": MSGPACK}
    )
    return results(answer)


def join(client: httpx.Client, group: str, topic: str) -> str:
    answer = client.post(f"/v1/groups/{group}/join", json={"topics": [topic]})
    assert answer.status_code == 200, answer.text
    member_id: str = answer.json()["member_id"]
    return member_id


def delivered(polled: Any) -> list[tuple[int, int, bytes | None]]:
    return [
        (partition, record.offset, record.value)
        for _, partition, first, end, data in polled["batches"]
        for position, header in iter_batches(memoryview(data))
        for record in decode_records(memoryview(data)[position : position + header.size])
        if first <= record.offset < end
    ]


def test_a_member_polls_batches_as_they_are_stored_and_commits_them(client: httpx.Client, two: str) -> None:
    group = f"group-of-{two}"
    results(send(client, two, [[0, batch(b"a", b"b")], [1, batch(b"x")], [0, batch(b"c")]]))
    member_id = join(client, group, two)
    found: list[tuple[int, int, bytes | None]] = []
    number = 0
    while len(found) < 4:
        polled = poll(client, group, member_id, last_poll=number)
        number = polled["poll"]
        found += delivered(polled)
        assert polled["state"] == "stable"
        assert sorted(map(tuple, polled["partitions"])) == [(two, 0), (two, 1)]
    assert sorted(found) == [(0, 0, b"a"), (0, 1, b"b"), (0, 2, b"c"), (1, 0, b"x")]
    committed = client.post(f"/v1/groups/{group}/commit", json={"member_id": member_id}).json()["offsets"]
    assert {(at["partition"], at["offset"]) for at in committed} == {(0, 3), (1, 1)}


def test_aborted_messages_are_not_in_polled_batches(client: httpx.Client, topic: str) -> None:
    assert client.post("/v1/topics", json={"name": topic, "partitions": 1}).status_code == 201
    for end in ("abort", "commit"):
        transaction = client.post("/v1/transactions").json()["transaction"]
        headers = {"penstock-transaction": transaction}
        assert client.post(f"/v1/topics/{topic}/publish", json={"value": end}, headers=headers).status_code == 200
        assert client.post(f"/v1/transactions/{transaction}/{end}").status_code == 200
    polled = poll(client, f"group-of-{topic}", join(client, f"group-of-{topic}", topic))
    assert [value for _, _, value in delivered(polled)] == [b"commit"]


def test_a_lost_answer_comes_again_in_batches_too(client: httpx.Client, topic: str) -> None:
    assert client.post("/v1/topics", json={"name": topic, "partitions": 1}).status_code == 201
    results(send(client, topic, [[0, batch(b"a")]]))
    member_id = join(client, f"group-of-{topic}", topic)
    first = poll(client, f"group-of-{topic}", member_id, last_poll=0)
    again = poll(client, f"group-of-{topic}", member_id, last_poll=0)
    assert delivered(first) == delivered(again) == [(0, 0, b"a")]
