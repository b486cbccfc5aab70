"""Bodies too large to come in one piece are put together by their connection: whole, in order, or not at all."""

from __future__ import annotations

import socket
from struct import pack

import msgspec
import pytest
from tests.integration.http.conftest import DoorInThread
from tests.integration.http.test_shortcut import Wire

from penstock.doors.rest.exchange import MSGPACK
from penstock.records import Record, decode_records, encode_batch

LARGE = 700_000


def batch(*values: bytes) -> bytes:
    return bytes(encode_batch([Record(at, 1_000, None, value) for at, value in enumerate(values)]))


def in_bulk(*batches: tuple[int, bytes]) -> bytes:
    """As the sink of Spark says it."""
    told = [pack(">BBIBI", 0x92, 0xCE, partition, 0xC6, len(data)) + data for partition, data in batches]
    return pack(">BI", 0xDD, len(batches)) + b"".join(told)


def request(topic: str, body: bytes, *headers: bytes) -> bytes:
    lines = [f"POST /v1/topics/{topic}/batches HTTP/1.1".encode(), b"host: 127.0.0.1", *headers]
    lines += [b"content-type: " + MSGPACK.encode(), b"content-length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def stored(door: DoorInThread, topic: str) -> list[bytes]:
    answer = door.client.get(f"/v1/topics/{topic}/partitions/0/batches", params={"max_bytes": 1 << 25})
    data = msgspec.msgpack.decode(answer.content)[5]
    found: list[bytes] = []
    while data:
        size = int.from_bytes(data[8:12], "big") + 12
        found += [record.value or b"" for record in decode_records(data[:size])]
        data = data[size:]
    return found


@pytest.mark.parametrize("form", [in_bulk, lambda *batches: msgspec.msgpack.encode(batches)], ids=["bulk", "any"])
def test_batches_of_a_large_body_are_stored_as_they_are(door: DoorInThread, topic: str, form: object) -> None:
    assert callable(form)
    values = [bytes([65 + at]) * LARGE for at in range(3)]
    body = form((0, batch(values[0], b"small")), (0, batch(values[1])), (0, batch(values[2])))
    answer = door.client.post(f"/v1/topics/{topic}/batches", content=body, headers={"content-type": MSGPACK})
    assert [offset for offset, _ in msgspec.msgpack.decode(answer.content)] == [0, 2, 3], answer.content
    assert stored(door, topic) == [values[0], b"small", *values[1:]]


@pytest.mark.parametrize("change", [lambda body: body + b"\0", lambda body: body[:-1], lambda body: b"\x93" + body])
def test_a_large_body_that_is_no_list_of_batches_is_refused(door: DoorInThread, topic: str, change: object) -> None:
    assert callable(change)
    body = change(in_bulk((0, batch(b"x" * LARGE))))
    answer = door.client.post(f"/v1/topics/{topic}/batches", content=body, headers={"content-type": MSGPACK})
    assert answer.status_code in (400, 422), answer.text
    assert door.client.get(f"/v1/topics/{topic}").status_code == 404, "not even the topic is there"


def test_json_may_be_as_large(door: DoorInThread, topic: str) -> None:
    answer = door.client.post(f"/v1/topics/{topic}/publish", json={"value": "é" * (LARGE // 2)})
    assert answer.status_code == 200, answer.text
    assert stored(door, topic) == ["é".encode() * (LARGE // 2)]


def test_requests_around_a_large_one_are_answered_in_order(door: DoorInThread, topic: str) -> None:
    """Small, large and small again at once on one connection, then the same large one in many pieces."""
    wire = Wire(door.server.port)
    small, large = request(topic, in_bulk((0, batch(b"s")))), request(topic, in_bulk((0, batch(b"x" * LARGE))))
    wire.say(small + large + small)
    for at in range(0, len(large), 50_001):
        wire.say(large[at : at + 50_001])
    answers = [wire.hear() for _ in range(4)]
    told = [msgspec.msgpack.decode(answer.partition(b"\r\n\r\n")[2]) for answer in answers]
    assert [offset for ((offset, _),) in told] == [0, 1, 2, 3]
    assert [len(value) for value in stored(door, topic)] == [1, LARGE, 1, LARGE]
    wire.close()


def test_a_large_body_that_stops_in_the_middle_leaves_nothing(door: DoorInThread, topic: str) -> None:
    large = request(topic, in_bulk((0, batch(b"x" * LARGE))))
    with socket.create_connection(("127.0.0.1", door.server.port), 60) as raw:
        raw.sendall(large[: LARGE // 2])
    assert door.client.post(f"/v1/topics/{topic}/publish", json={"value": "after"}).status_code == 200
    assert stored(door, topic) == [b"after"]


def test_a_large_body_is_sent_once_it_is_asked_for(door: DoorInThread, topic: str) -> None:
    wire = Wire(door.server.port)
    large = request(topic, in_bulk((0, batch(b"x" * LARGE))), b"expect: 100-continue")
    head, end, body = large.partition(b"\r\n\r\n")
    wire.say(head + end)
    assert wire.hear().startswith(b"HTTP/1.1 100")
    assert wire.ask(body).startswith(b"HTTP/1.1 200")
    wire.close()


def test_a_refused_large_body_is_read_to_its_end(door: DoorInThread) -> None:
    """What is behind it on the connection is another request, not the rest of it."""
    wire = Wire(door.server.port)
    answer = wire.ask(request("__transaction_state", in_bulk((0, batch(b"x" * LARGE)))))
    assert answer.startswith(b"HTTP/1.1 4")
    assert wire.ask(b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").startswith(b"HTTP/1.1 200")
    wire.close()
