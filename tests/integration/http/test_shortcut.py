"""Requests with a head that came before are answered as if it had not: whatever they say, however they are cut."""

from __future__ import annotations

import random
import re
import socket
import time
from collections.abc import Iterator

import msgspec
import pytest
from tests.support.cluster import eventually

from penstock.broker.broker import Broker
from penstock.doors.rest.connection import Connection
from penstock.doors.rest.exchange import MSGPACK
from penstock.doors.rest.shortcut import Known
from penstock.records import Codec, encode_values

from .conftest import DoorInThread, OpenDoor, http_config

PACK = MSGPACK.encode()
JSON = b"application/json"
_LENGTH = re.compile(rb"content-length: (\d+)")
_DATE = re.compile(rb"date: [^\r]+\r\n")


class Wire:
    """One connection to a door, in bytes."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._heard = b""

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hear(self) -> bytes:
        """The next answer, without its date; nothing if the connection is closed."""
        while True:
            head, end, rest = self._heard.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            size = int(length[1]) if length else 0
            if end and len(rest) >= size:
                self._heard = rest[size:]
                return _DATE.sub(b"", head) + end + rest[:size]
            more = self._socket.recv(65_536)
            if not more:
                return b""
            self._heard += more

    def ask(self, data: bytes) -> bytes:
        self.say(data)
        return self.hear()

    def close(self) -> None:
        self._socket.close()


def request(path: str, body: bytes, *, kind: bytes = JSON, accept: bytes = JSON, more: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: %b\r\n%bcontent-type: %b\r\n" % (
        path.encode(),
        accept,
        more,
        kind,
    )
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def batches(*values: bytes, partition: int = 0) -> bytes:
    batch = encode_values(values, 1_000, codec=Codec.NONE, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return msgspec.msgpack.encode([[partition, bytes(batch)]])


def publish(topic: str, body: bytes) -> bytes:
    return request(f"/v1/topics/{topic}/batches", body, kind=PACK, accept=PACK)


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of requests that went the short way."""
    paths: list[str] = []
    serve = Connection._serve

    def counting(connection: Connection, known: Known) -> None:
        paths.append(known.scope["path"])
        serve(connection, known)

    monkeypatch.setattr(Connection, "_serve", counting)
    return paths


@pytest.fixture
def wires(door: DoorInThread) -> Iterator[list[Wire]]:
    opened = [Wire(door.server.port) for _ in range(2)]
    yield opened
    for wire in opened:
        wire.close()


def _body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def test_a_worker_s_calls_go_the_short_way_and_mean_the_same(
    door: DoorInThread, topic: str, wires: list[Wire], shortened: list[str]
) -> None:
    wire = wires[0]
    for number in range(5):
        (told,) = msgspec.msgpack.decode(_body_of(wire.ask(publish(topic, batches(b"value %d" % number)))))
        assert told[0] == number
    receipts: list[str] = []
    for number in range(5):
        body = msgspec.json.encode({"group": "g", "max": 1, "ack": receipts})
        (lease,) = msgspec.msgpack.decode(_body_of(wire.ask(request(f"/v1/queues/{topic}/receive", body, accept=PACK))))
        name, partition, nonce, _, ((first, last, count),), data = lease
        assert (first, last, count) == (number, number, 1)
        assert b"value %d" % number in data
        receipts = [f"{name}:{partition}:{first}:{count}:{nonce}"]
    for expected in (b'"done"', b'"already_acked"'):
        body = msgspec.json.encode({"group": "g", "receipts": receipts})
        assert expected in wire.ask(request(f"/v1/queues/{topic}/ack", body))
    assert len(shortened) == 4 + 4 + 1
    assert door.broker.queues.figures is not None
    counted = door.client.get("/metrics").text
    assert 'operation="publish_batches",status="200"' in counted


_RECEIPT = b'{"receipts": ["x:0:1:1:abcd"], "group": "g"}'
_CASES = [
    ("/v1/topics/%s/batches", b"\x91\x92\x00\xc4\x01x", PACK, b""),
    ("/v1/topics/%s/batches", b"\xc1", PACK, b""),
    ("/v1/topics/%s/batches", b"\x93\x01\x02\x03", PACK, b""),
    ("/v1/topics/%s/batches", b"\x91\x92\x63\xc4\x01x", PACK, b""),
    ("/v1/topics/%s/batches", b"", PACK, b""),
    ("/v1/topics/%s/batches", b"\x90", JSON, b""),
    ("/v1/topics/%s/batches", b"\x90", PACK, b"origin: http://evil.example\r\n"),
    ("/v1/topics/__consumer_offsets/batches", batches(b"x"), PACK, b""),
    ("/v1/queues/%s/receive", b"", JSON, b""),
    ("/v1/queues/%s/receive", b'{"max": 0}', JSON, b""),
    ("/v1/queues/%s/receive", b"{", JSON, b""),
    ("/v1/queues/%s/receive", b'{"ack": ["x"]}', JSON, b""),
    ("/v1/queues/nobody-made-this/receive", b'{"group": "g"}', JSON, b""),
    ("/v1/queues/%s/ack", _RECEIPT, JSON, b""),
    ("/v1/queues/%s/ack", b'{"receipts": []}', JSON, b""),
    ("/v1/queues/%s/nack", _RECEIPT, JSON, b""),
    ("/v1/queues/%s/extend", _RECEIPT, JSON, b""),
    ("/v1/groups/a%%2Fb/ack", b'{"receipts": ["x"]}', JSON, b""),
    ("/v1/queues/%s/ack", _RECEIPT, JSON, b"origin: http://evil.example\r\n"),
    ("/v1/queues/%s/ack", _RECEIPT, JSON, b"penstock-forwarded: 7\r\n"),
    ("/v1/topics/%s/publish", b'{"value": "x", "partition": 99}', JSON, b""),
    ("/v1/nothing/here", b"{}", JSON, b""),
]


@pytest.mark.parametrize(("path", "body", "kind", "more"), _CASES)
def test_answers_are_the_same_either_way(
    door: DoorInThread, wires: list[Wire], path: str, body: bytes, kind: bytes, more: bytes
) -> None:
    path = path % "either" if "%s" in path else path.replace("%%", "%")
    asked = request(path, body, kind=kind, more=more)
    warmed, fresh = wires
    warmed.ask(asked)
    door.client.post("/v1/queues/either/groups/g/resume")  # anything else meanwhile
    again = warmed.ask(asked)
    assert again == fresh.ask(asked)
    assert again.startswith(b"HTTP/1.1 ")
    other = request(path, body + b" ", kind=kind, more=more)
    assert warmed.ask(other) == fresh.ask(other)


def test_publishing_json_goes_the_short_way_also_with_a_query(
    topic: str, wires: list[Wire], shortened: list[str]
) -> None:
    wire = wires[0]
    for path in (f"/v1/topics/{topic}/publish", f"/v1/topics/{topic}/publish?partitioner=round_robin"):
        for number in range(3):
            assert b'"offset":' in wire.ask(request(path, b'{"value": %d, "partition": 0}' % number))
        assert b'"invalid_body"' in wire.ask(request(path, b'{"value": 1, "colour": "red"}'))
    refused = [wire.ask(request(f"/v1/topics/{topic}/publish?partitioner=coin", b'{"value": 1}')) for _ in range(2)]
    assert [b"There is no partitioner" in answer for answer in refused] == [True, True]
    assert len(shortened) == 3 + 3 + 1


def test_a_foreign_page_is_refused_each_time(topic: str, wires: list[Wire], shortened: list[str]) -> None:
    data = request(f"/v1/topics/{topic}/batches", batches(b"x"), kind=PACK, more=b"origin: http://evil.example\r\n")
    for _ in range(3):
        assert wires[0].ask(data).startswith(b"HTTP/1.1 403")
    assert not shortened


def test_a_body_that_is_too_large_is_refused_each_time(open_door: OpenDoor) -> None:
    door = open_door(http_config(max_body_bytes=1_000))
    wire = Wire(door.server.port)
    assert wire.ask(publish("small", batches(b"x"))).startswith(b"HTTP/1.1 200")
    for _ in range(2):
        answer = wire.ask(publish("small", batches(b"x" * 2_000)))
        assert answer.startswith(b"HTTP/1.1 413")
        wire.close()
        wire = Wire(door.server.port)
        assert wire.ask(publish("small", batches(b"x"))).startswith(b"HTTP/1.1 200")
    wire.close()


def _chunked(path: str, body: bytes, kind: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % (
        path.encode(),
        kind,
    )
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


@pytest.mark.parametrize("seed", range(12))
def test_however_requests_are_cut_or_joined_each_has_its_answer(
    topic: str, wires: list[Wire], shortened: list[str], seed: int
) -> None:
    chance = random.Random(seed)
    wire = wires[0]
    wire.ask(publish(topic, batches(b"first")))
    said: list[bytes] = []
    expected: list[bytes] = []
    offset = 1
    for _ in range(12):
        match chance.randrange(5):
            case 0 | 1:
                said.append(publish(topic, batches(b"v" * chance.choice((1, 300)))))
            case 2:
                said.append(_chunked(f"/v1/topics/{topic}/batches", batches(b"in chunks"), PACK))
            case 3:
                said.append(request(f"/v1/queues/{topic}/ack", _RECEIPT))
                expected.append(b'"malformed"')
                continue
            case _:
                said.append(b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                expected.append(b'"ok"')
                continue
        expected.append(msgspec.msgpack.encode([[offset, -1]]))
        offset += 1
    stream = b"".join(said)
    ends = {sum(map(len, said[: at + 1])) for at in range(len(said))}
    cuts = sorted({*chance.sample(range(1, len(stream)), 6), *(end for end in ends if chance.random() < 0.6)})
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        wire.say(stream[begin:end])
        time.sleep(0.002)
    answers = [wire.hear() for _ in said]
    for answer, part in zip(answers, expected, strict=True):
        assert part in answer


def test_a_garbled_request_after_known_ones_ends_the_connection(topic: str, wires: list[Wire]) -> None:
    wire = wires[0]
    for _ in range(2):
        wire.ask(publish(topic, batches(b"x")))
    assert wire.ask(b"NONSENSE\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert wire.hear() == b""


def test_close_and_old_versions_are_heeded_after_known_ones(
    topic: str, wires: list[Wire], shortened: list[str]
) -> None:
    data = publish(topic, batches(b"x"))
    for _ in range(2):
        wires[0].ask(data)
        wires[1].ask(data)
    assert len(shortened) == 2
    last = wires[0].ask(data.replace(b"accept:", b"connection: close\r\naccept:"))
    assert b"connection: close" in last
    assert wires[0].hear() == b""
    assert wires[1].ask(data.replace(b"HTTP/1.1", b"HTTP/1.0")).startswith(b"HTTP/1.1 200")
    assert wires[1].hear() == b""
    assert len(shortened) == 2


def test_a_known_request_that_is_cut_off_does_nothing(door: DoorInThread, topic: str, wires: list[Wire]) -> None:
    data = publish(topic, batches(b"x"))
    wires[0].ask(data)
    wires[0].say(data[:-5])
    wires[0].close()
    (told,) = msgspec.msgpack.decode(_body_of(wires[1].ask(data)))
    assert told[0] == 1


def await_line(door: DoorInThread, topic: str, *, is_empty: bool) -> None:
    """Return once somebody waits for messages of a topic, or nobody does any more."""

    def look(broker: Broker) -> bool:
        return is_empty == all(len(shard.room("g")) == 0 for shard in broker.queues.coordinator if shard.topic == topic)

    eventually(lambda: door.look(look))


def test_a_known_long_poll_whose_client_goes_leaves_its_message_to_others(
    door: DoorInThread, topic: str, wires: list[Wire], shortened: list[str]
) -> None:
    wires[1].ask(publish(topic, batches(b"x")))
    poll = msgspec.json.encode({"group": "g", "max": 1, "wait_ms": 0})
    ask = request(f"/v1/queues/{topic}/receive", poll, accept=PACK)
    wires[0].ask(ask)
    long_poll = msgspec.json.encode({"group": "g", "max": 1, "wait_ms": 30_000})
    wires[0].say(request(f"/v1/queues/{topic}/receive", long_poll, accept=PACK))
    await_line(door, topic, is_empty=False)
    assert shortened
    wires[0].close()
    await_line(door, topic, is_empty=True)
    wires[1].ask(publish(topic, batches(b"for whoever is there")))
    answer = wires[1].ask(request(f"/v1/queues/{topic}/receive", long_poll, accept=PACK))
    (lease,) = msgspec.msgpack.decode(_body_of(answer))
    assert b"for whoever is there" in lease[-1]
    assert lease[4][0][2] == 1, "nobody else had it"


def test_an_idle_connection_is_closed(open_door: OpenDoor) -> None:
    door = open_door(http_config(idle_timeout_ms=1_000))
    wire = Wire(door.server.port)
    for _ in range(2):
        assert wire.ask(publish("idle", batches(b"x"))).startswith(b"HTTP/1.1 200")
    assert wire.hear() == b""
    wire.close()
