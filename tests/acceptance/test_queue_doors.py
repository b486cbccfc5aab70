"""Queues at the doors of one node: REST and WebSocket, beside Kafka's readers of the same topic."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import msgspec
import pytest
from confluent_kafka import Consumer, Producer
from tests.acceptance.conftest import NodeMaker
from tests.support.node import Node
from tests.support.queue_door import MSGPACK, Door, code_of, receipts_of
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from penstock.records import decode_records, iter_batches


@pytest.fixture(scope="module")
def door(node: Node) -> Iterator[Door]:
    opened = Door(node)
    yield opened
    opened.client.close()


# -- REST --------------------------------------------------------------------------------------------------------------


def test_a_message_has_what_its_worker_needs(door: Door, topic: str) -> None:
    door.create(topic)
    body = {"key": "k", "value": {"n": 1}, "headers": {"h": "x"}}
    assert door.client.post(f"/v1/topics/{topic}/publish", json=body).status_code == 200
    assert door.client.post(f"/v1/topics/{topic}/publish", json={"value_base64": "/w=="}).status_code == 200
    text, binary = door.receive(topic)
    assert set(text) == {
        "receipt", "topic", "partition", "offset", "key", "value", "headers", "timestamp", "delivery_count",
        "lease_until",
    }  # fmt: skip
    assert text["receipt"].startswith(f"{topic}:0:0:1:")
    assert (text["key"], text["value"], text["headers"], text["delivery_count"]) == ("k", '{"n":1}', {"h": "x"}, 1)
    assert text["lease_until"] > text["timestamp"]
    assert binary["value_base64"] == "/w=="
    assert "value" not in binary


def test_what_is_acked_never_comes_again_and_what_is_not_does(door: Door, topic: str) -> None:
    door.create(topic, 3)
    door.publish(topic, *map(str, range(20)))
    first = door.receive(topic, max=10, visibility_timeout_ms=3_000)
    assert len(first) == 10
    assert set(door.statuses(topic, "ack", receipts_of(first[:6]))) == {"done"}
    rest = door.drain(topic, 14)
    assert sorted(rest) == sorted(set(map(str, range(20))) - {message["value"] for message in first[:6]})
    after = door.group(topic)
    assert (after["ready"], after["in_flight"], after["waiting"]) == (0, 0, 0)
    assert sum(at["committed"] for at in after["partitions"]) == 20


def test_a_long_poll_ends_with_the_first_message(door: Door, topic: str) -> None:
    door.create(topic)
    assert door.receive(topic) == []
    later = threading.Timer(0.4, door.publish, (topic, "late"))
    began = time.monotonic()
    later.start()
    messages = door.receive(topic, wait_ms=20_000)
    took = time.monotonic() - began
    later.join()
    assert [message["value"] for message in messages] == ["late"]
    assert 0.3 < took < 15


def test_nack_brings_it_again_with_a_higher_count_and_reject_buries_it(door: Door, topic: str) -> None:
    door.create(topic)
    door.publish(topic, "again", "never")
    again, never = door.receive(topic)
    assert door.statuses(topic, "nack", [again["receipt"]], delay_ms=0, reason="not now") == ["done"]
    assert door.statuses(topic, "reject", [never["receipt"]], reason="no good") == ["done"]
    (second,) = door.receive(topic, wait_ms=20_000)
    assert (second["value"], second["delivery_count"]) == ("again", 2)
    assert door.statuses(topic, "ack", [second["receipt"]]) == ["done"]
    letters = f"{topic}.dlq"
    deadline = time.monotonic() + 60
    while door.client.get(f"/v1/topics/{letters}").status_code == 404:
        assert time.monotonic() < deadline, "no dead letters"
        time.sleep(0.1)
    page = door.client.get(f"/v1/topics/{letters}/messages", params={"timeout_ms": 10_000}).json()
    assert [message["value"] for message in page["messages"]] == ["never"]
    assert page["messages"][0]["headers"]["penstock-dlq-reason"] == "no good"


def test_released_messages_come_at_once_and_it_does_not_count(door: Door, topic: str) -> None:
    door.create(topic)
    door.publish(topic, "a")
    for _ in range(5):  # more often than there are tries
        (message,) = door.receive(topic, wait_ms=20_000)
        assert message["delivery_count"] == 1
        assert door.statuses(topic, "release", [message["receipt"]]) == ["done"]


def test_extend_keeps_a_message_for_longer(door: Door, topic: str) -> None:
    door.create(topic)
    door.publish(topic, "slow")
    (message,) = door.receive(topic, visibility_timeout_ms=2_000)
    assert door.statuses(topic, "extend", [message["receipt"]], visibility_timeout_ms=60_000) == ["done"]
    time.sleep(2.3)
    assert door.receive(topic) == []
    assert door.statuses(topic, "ack", [message["receipt"]]) == ["done"]


def test_receive_can_ack_what_came_before(door: Door, topic: str) -> None:
    door.create(topic)
    door.publish(topic, "1", "2")
    (first,) = door.receive(topic, max=1)
    answer = door.call(topic, "receive", max=1, ack=[first["receipt"]]).json()
    assert [result["status"] for result in answer["acked"]] == ["done"]
    assert [message["value"] for message in answer["messages"]] == ["2"]
    refused = door.call(topic, "receive", max=1, ack=[first["receipt"]])
    assert refused.status_code == 207
    assert refused.json()["messages"] == []
    assert refused.json()["acked"][0]["status"] == "already_acked"


def test_leases_come_in_binary_and_are_acked_as_ranges(door: Door, topic: str) -> None:
    door.create(topic)
    door.publish(topic, *map(str, range(100)))
    answer = door.client.post(f"/v1/queues/{topic}/receive", json={"max": 60}, headers={"accept": MSGPACK})
    assert answer.headers["content-type"] == MSGPACK
    ((name, partition, nonce, until_ms, deliveries, data),) = msgspec.msgpack.decode(answer.content)
    assert (name, partition, deliveries) == (topic, 0, [[0, 59, 1]])
    assert until_ms > time.time() * 1000
    values = [
        record.value
        for position, header in iter_batches(memoryview(data))
        for record in decode_records(memoryview(data)[position : position + header.size])
        if record.offset <= 59
    ]
    assert values == [str(at).encode() for at in range(60)]
    assert door.statuses(topic, "ack", [f"{topic}:0:0-59:1:{nonce}"]) == ["done"]
    assert door.group(topic)["partitions"][0]["committed"] == 60


def test_receipts_of_several_topics_are_settled_by_group(door: Door, topic: str) -> None:
    other = f"{topic}-other"
    receipts = []
    for name in (topic, other):
        door.create(name)
        door.publish(name, "x")
        receipts += receipts_of(door.receive(name, group="g"))
    answer = door.client.post("/v1/groups/g/ack", json={"receipts": receipts})
    assert answer.status_code == 200
    assert [result["status"] for result in answer.json()["results"]] == ["done", "done"]
    assert code_of(door.client.post("/v1/groups/nobody/ack", json={"receipts": receipts})) == (404, "group_not_found")


def test_a_client_that_hangs_up_leaves_no_message_with_nobody(door: Door, node: Node, topic: str) -> None:
    door.create(topic)
    patience = httpx.Timeout(60, read=0.5)
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=node.http_url, timeout=patience) as hasty:
        hasty.post(f"/v1/queues/{topic}/receive", json={"wait_ms": 20_000})
    time.sleep(0.2)
    door.publish(topic, "mine")
    (message,) = door.receive(topic, wait_ms=20_000)
    assert (message["value"], message["delivery_count"]) == ("mine", 1)


def test_groups_are_declared_shown_steered_and_forgotten(door: Door, topic: str) -> None:
    door.create(topic, 2)
    door.publish(topic, "old", "old too")
    path = f"/v1/queues/{topic}/groups/late"
    body = {"start": "latest", "settings": {"tries": 7, "visibility.timeout.ms": "1234"}}
    declared = door.client.put(path, json=body)
    assert declared.status_code == 200, declared.text
    assert declared.json()["own_settings"] == {"tries": "7", "visibility.timeout.ms": "1234"}
    assert declared.json()["settings"]["tries"] == "7"
    assert door.receive(topic, group="late") == []
    paused = door.client.post(f"{path}/pause", json={"reason": "repairs"}).json()
    assert (paused["paused"], paused["pause_reason"]) == (True, "repairs")
    door.publish(topic, "new")
    assert door.receive(topic, group="late") == []
    assert door.client.post(f"{path}/resume").json()["paused"] is False
    peeked = door.client.get(f"{path}/peek").json()["messages"]
    assert [(message["value"], message["state"]) for message in peeked] == [("new", "ready")]
    assert door.client.post(f"{path}/seek", json={"to": "earliest"}).json()["ready"] == 3
    assert door.call(topic, "purge", group="late").json()["ready"] == 0
    assert door.receive(topic, group="late") == []
    shown = door.client.get(f"/v1/queues/{topic}").json()
    assert [group["group"] for group in shown["groups"]] == ["late"]
    assert {"topic": topic, "groups": ["late"]} in door.client.get("/v1/queues").json()["queues"]
    assert door.client.delete(path).status_code == 204
    assert code_of(door.client.get(path)) == (404, "group_not_found")


def test_metrics_tell_of_a_queue_what_went_through_it_and_how_it_stands(door: Door, topic: str) -> None:
    door.create(topic)
    door.publish(topic, *map(str, range(6)))
    messages = door.receive(topic, max=4)
    door.statuses(topic, "ack", receipts_of(messages[:2]))
    door.statuses(topic, "nack", receipts_of(messages[2:3]), delay_ms=60_000)
    rows = {
        line.split("{")[0]: float(line.split()[-1])
        for line in door.client.get("/metrics").text.splitlines()
        if f'topic="{topic}"' in line and 'group="default"' in line and "partition=" not in line
    }
    assert rows["penstock_queue_ready"] == 2
    assert rows["penstock_queue_in_flight"] == 1
    assert rows["penstock_queue_waiting"] == 1
    assert rows["penstock_queue_receives_total"] == 4
    assert rows["penstock_queue_acks_total"] == 2
    assert rows["penstock_queue_nacks_total"] == 1
    assert 0 <= rows["penstock_queue_oldest_age_seconds"] < 60
    names = ("rejects", "redeliveries")
    assert all(rows[f"penstock_queue_{name}_total"] == 0 for name in names)
    assert rows["penstock_visibility_timeout_total"] == rows["penstock_dlq_total"] == 0


# -- three readers -----------------------------------------------------------------------------------------------------


READ_PARTITIONS = 3
READ_COUNT = 3_000
READ_LIMIT_S = 60
Place = tuple[int, int]  # partition and offset


class Readers:
    """Three ways to read one topic at once. Each notes where every message was that it got, in order.

    The queue has two consumers, who nack every fiftieth message the first time: that must not be seen elsewhere.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._node = node
        self._topic = topic
        self._deadline = time.monotonic() + READ_LIMIT_S
        self._lock = threading.Lock()
        self.values: dict[Place, str] = {}  # as the producer was told
        self.kafka: list[tuple[Place, str]] = []
        self.rest: list[tuple[Place, str]] = []
        self.acked: list[tuple[Place, str]] = []
        self.nacked: list[Place] = []
        self.deliveries: dict[Place, int] = {}  # the one that was acked

    def run(self) -> None:
        works = (self._produce, self._read_kafka, self._read_rest, self._work_queue, self._work_queue)
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(READ_LIMIT_S + 30)
        assert not any(thread.is_alive() for thread in threads)

    def _goes_on(self, so_far: Sequence[object]) -> bool:
        return len(so_far) < READ_COUNT and time.monotonic() < self._deadline

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._node.bootstrap, "linger.ms": 5, "enable.idempotence": True})

        def note(error: object, message: Any) -> None:
            assert error is None, error
            self.values[message.partition(), message.offset()] = message.value().decode()

        for at in range(READ_COUNT):
            producer.produce(self._topic, key=str(at % 17), value=str(at), on_delivery=note)
            producer.poll(0)
            if at % 100 == 0:
                time.sleep(0.02)  # so that all of them read while it is being written
        assert producer.flush(READ_LIMIT_S) == 0

    def _read_kafka(self) -> None:
        config = {"group.id": f"kafka-{self._topic}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self._node.bootstrap, **config})
        consumer.subscribe([self._topic])
        while self._goes_on(self.kafka):
            self.kafka += self._consumed(consumer, 500, 0.5)
        self.kafka += self._consumed(consumer, 1, 1.0)  # there is no more
        consumer.commit(asynchronous=False)
        consumer.close()

    def _consumed(self, consumer: Consumer, count: int, wait_s: float) -> list[tuple[Place, str]]:
        messages = [each for each in consumer.consume(count, wait_s) if not each.error()]
        return [((each.partition(), each.offset()), each.value().decode()) for each in messages]

    def _read_rest(self) -> None:
        own = Door(self._node)
        offsets = dict.fromkeys(range(READ_PARTITIONS), 0)
        is_last = False
        while not is_last:
            is_last = not self._goes_on(self.rest)  # and once more, as there may be too many
            for partition, offset in offsets.items():
                params = {"partition": partition, "offset": offset, "limit": 500, "timeout_ms": 50}
                page = own.client.get(f"/v1/topics/{self._topic}/messages", params=params).json()
                self.rest += [((partition, each["offset"]), each["value"]) for each in page["messages"]]
                offsets[partition] = page["next_offset"]
        own.client.close()

    def _work_queue(self) -> None:
        own = Door(self._node)
        while self._goes_on(self.acked):
            messages = own.receive(self._topic, group="workers", max=100, wait_ms=300)
            failed = [each for each in messages if int(each["value"]) % 50 == 0 and each["delivery_count"] == 1]
            done = [each for each in messages if each not in failed]
            if failed:
                statuses = own.statuses(self._topic, "nack", receipts_of(failed), group="workers", delay_ms=50)
                assert set(statuses) == {"done"}
            if done:
                statuses = own.statuses(self._topic, "ack", receipts_of(done), group="workers")
                assert set(statuses) == {"done"}
            with self._lock:
                self.acked += [((each["partition"], each["offset"]), each["value"]) for each in done]
                self.nacked += [(each["partition"], each["offset"]) for each in failed]
                self.deliveries |= {(each["partition"], each["offset"]): each["delivery_count"] for each in done}
        own.client.close()


def test_a_kafka_group_a_queue_group_and_a_rest_reader_each_get_everything(door: Door, node: Node, topic: str) -> None:
    """One topic, read at once in three ways while it is being written; none disturbs another."""
    door.create(topic, READ_PARTITIONS)
    readers = Readers(node, topic)
    readers.run()
    wanted = sorted(readers.values.items())
    assert sorted(int(value) for _, value in wanted) == list(range(READ_COUNT))
    for partition in range(READ_PARTITIONS):
        # Streams are read in order, each message once.
        expected = [row for row in wanted if row[0][0] == partition]
        assert [row for row in readers.kafka if row[0][0] == partition] == expected
        assert [row for row in readers.rest if row[0][0] == partition] == expected
    # The queue is done with each message once; what failed came once more, and nothing else did.
    assert sorted(readers.acked) == wanted
    assert sorted(readers.nacked) == [place for place, value in wanted if int(value) % 50 == 0]
    assert readers.deliveries == {place: 2 if int(value) % 50 == 0 else 1 for place, value in wanted}
    stats = door.group(topic, "workers")
    assert (stats["ready"], stats["in_flight"], stats["waiting"], stats["dying"]) == (0, 0, 0, 0)
    assert door.receive(topic, group="workers", wait_ms=300) == []
    ends = [max(place[1] for place, _ in wanted if place[0] == at) + 1 for at in range(READ_PARTITIONS)]
    assert [at["committed"] for at in stats["partitions"]] == ends
    # Kafka's tools see both as groups without lag.
    for group in ("workers", f"kafka-{topic}"):
        await_offsets(door, group, topic, ends)


def await_offsets(door: Door, group: str, topic: str, wanted: list[int]) -> None:
    deadline = time.monotonic() + 60
    while True:
        answer = door.client.get(f"/v1/groups/{group}")
        rows = answer.json()["offsets"] if answer.status_code == 200 else []
        found = {row["partition"]: row["committed_offset"] for row in rows if row["topic"] == topic}
        if [found.get(at) for at in range(len(wanted))] == wanted:
            return
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.2)


# -- WebSocket ---------------------------------------------------------------------------------------------------------


class Talk:
    """A WebSocket client that keeps what it did not ask for yet."""

    def __init__(self, node: Node, query: str = "") -> None:
        url = node.http_url.replace("http", "ws") + f"/v1/ws{query}"
        self.socket = connect(url, legacy=True)
        self._early: list[dict[str, Any]] = []
        self.hello = self.next("hello")

    def next(self, kind: str) -> dict[str, Any]:
        for at, frame in enumerate(self._early):
            if frame["type"] == kind:
                return self._early.pop(at)
        while True:
            frame = json.loads(self.socket.recv(20))
            if frame["type"] == kind:
                found: dict[str, Any] = frame
                return found
            self._early.append(frame)

    def ask(self, op: str, **members: Any) -> dict[str, Any]:
        self.socket.send(json.dumps({"op": op, "id": op, **members}))
        return self.next("result")

    def cut(self) -> None:
        self.socket.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def test_a_socket_that_breaks_again_and_again_loses_nothing_and_gets_nothing_twice(
    door: Door, node: Node, topic: str
) -> None:
    door.create(topic, 3)
    count = 600
    door.publish(topic, *map(str, range(count)))
    client = Talk(node)
    consumer = client.hello["consumer"]
    client.ask("subscribe", topic=topic, group="g", credits=40, subscription="s")
    done: list[str] = []
    seen = 0
    while len(done) < count:
        delivery = client.next("messages")
        assert delivery["number"] == seen + 1
        seen = delivery["number"]
        receipts = receipts_of(delivery["messages"])
        results = client.ask("ack", subscription="s", receipts=receipts)["results"]
        assert {result["status"] for result in results} == {"done"}
        done += [message["value"] for message in delivery["messages"]]
        client.ask("next", subscription="s", credits=len(receipts), seen=seen)
        if seen % 4 == 0:
            client.cut()
            client = Talk(node, f"?resume={client.hello['token']}&seen={seen}")
            assert (client.hello["resumed"], client.hello["consumer"]) == (True, consumer)
    assert sorted(done, key=int) == [str(at) for at in range(count)]
    client.socket.close()
    after = door.group(topic, "g")
    assert (after["ready"], after["in_flight"], after["waiting"]) == (0, 0, 0)


def test_receipts_are_good_after_the_node_was_killed(make_node: NodeMaker, topic: str) -> None:
    with make_node() as node:
        door = Door(node)
        door.create(topic)
        door.publish(topic, "a", "b", "c")
        client = Talk(node)
        client.ask("subscribe", topic=topic, credits=2, visibility_timeout_ms=120_000)
        delivery = client.next("messages")
        node.kill()
        with pytest.raises(ConnectionClosed):
            client.next("result")
        node.restart()
        back = Talk(node, f"?resume={client.hello['token']}")
        assert back.hello["resumed"] is False
        back.ask("subscribe", topic=topic, credits=10)
        assert [message["value"] for message in back.next("messages")["messages"]] == ["c"]
        results = back.ask("ack", receipts=receipts_of(delivery["messages"]))["results"]
        assert [result["status"] for result in results] == ["done", "done"]
        began = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - began < 40
        with pytest.raises(ConnectionClosed):
            back.next("result")
