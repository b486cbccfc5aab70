"""Transactions on three nodes: partitions, coordinators and groups are spread, and nodes are killed in the middle."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.cluster import Cluster, ClusterNode, eventually

TOPIC = "orders"
PARTITIONS = 6

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        yield cluster


def reader(cluster: Cluster, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def read_committed(cluster: Cluster) -> Counter[str]:
    """Every message that is committed now."""
    consumer = reader(cluster, "read_committed")
    found: Counter[str] = Counter()
    left = set(range(PARTITIONS))
    try:
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in left])
        deadline = time.monotonic() + 60
        while left and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found[message.value().decode()] += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
    finally:
        consumer.close()
    assert not left, f"partitions {left} could not be read to their ends"
    return found


def is_all_decided(cluster: Cluster) -> bool:
    """Whether readers of committed messages get as far as all others."""
    ends = []
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = reader(cluster, isolation)
        ends.append([consumer.get_watermark_offsets(TopicPartition(TOPIC, at), 10)[1] for at in range(PARTITIONS)])
        consumer.close()
    return ends[0] == ends[1]


class Teller(threading.Thread):
    """Runs one transaction after the other, each over all partitions, and knows what became of every one."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(daemon=True)
        self._servers = cluster.bootstrap
        self._id = name
        self.is_over = threading.Event()
        self.committed: list[str] = []
        self.aborted: list[str] = []
        self.unsure: list[str] = []

    def _producer(self) -> Producer:
        while True:
            producer = Producer(
                {
                    "bootstrap.servers": self._servers,
                    "transactional.id": self._id,
                    "transaction.timeout.ms": 20_000,
                    "linger.ms": 1,
                }
            )
            try:
                producer.init_transactions(30)
            except KafkaException:
                time.sleep(0.2)
            else:
                return producer

    def run(self) -> None:
        producer, number = self._producer(), 0
        while not self.is_over.is_set():
            number += 1
            which = f"{self._id}-{number}"
            try:
                producer.begin_transaction()
                for index in range(PARTITIONS):
                    producer.produce(TOPIC, which.encode(), partition=index)
                if number % 5 == 0:
                    producer.flush(10)
                    producer.abort_transaction(30)
                    self.aborted.append(which)
                else:
                    self._commit(producer)
                    self.committed.append(which)
            except KafkaException as error:
                if error.args[0].txn_requires_abort():
                    try:
                        producer.abort_transaction(30)
                        self.aborted.append(which)
                        continue
                    except KafkaException:
                        pass
                self.unsure.append(which)
                producer = self._producer()

    def _commit(self, producer: Producer) -> None:
        while True:
            try:
                producer.commit_transaction(30)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


def test_transactions_are_whole_while_nodes_are_killed(cluster: Cluster) -> None:
    tellers = [Teller(cluster, name) for name in ("north", "south")]
    for teller in tellers:
        teller.start()
    for node in cluster.nodes.values():
        time.sleep(2)
        node.kill()
        time.sleep(1)
        node.start()
    time.sleep(2)
    for teller in tellers:
        teller.is_over.set()
    for teller in tellers:
        teller.join(90)
        assert not teller.is_alive(), "a transaction did not come to an end"
    eventually(lambda: is_all_decided(cluster), 60, "the end of every transaction")
    found = read_committed(cluster)
    for teller in tellers:
        assert len(teller.committed) > 10
        assert {which: found[which] for which in teller.committed} == dict.fromkeys(teller.committed, PARTITIONS)
        assert [which for which in teller.aborted if found[which]] == []
        assert [which for which in teller.unsure if found[which] not in {0, PARTITIONS}] == []


def test_offsets_are_committed_with_the_transaction_whoever_coordinates(cluster: Cluster) -> None:
    """Several groups and transactional ids, so that their coordinators are on the same node and on different ones."""
    for number in range(6):
        group = f"group-{number}"
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False})
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"mover-{number}"})
        producer.init_transactions(30)
        for offset, is_commit in ((10, True), (20, False)):
            producer.begin_transaction()
            producer.produce(TOPIC, b"moved", partition=number)
            places = [TopicPartition(TOPIC, 0, offset)]
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), 30)
            if is_commit:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
        (place,) = consumer.committed([TopicPartition(TOPIC, 0)], 30)
        assert place.offset == 10, group
        consumer.close()
    assert read_committed(cluster) == {"moved": 6}


def call(node: ClusterNode, path: str, body: object, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{node.http_url}{path}",
        method="POST",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_joint_transaction_takes_writers_at_every_node(cluster: Cluster) -> None:
    nodes = list(cluster.nodes.values())
    expected: Counter[str] = Counter()
    for round_number in range(3):
        status, opened = call(nodes[round_number], "/v1/transactions", {})
        assert status == 201, opened
        name = opened["transaction"]
        for step in range(4):
            values = [f"{round_number}.{step}.{index}" for index in range(PARTITIONS)]
            messages = [{"value": value, "partition": index} for index, value in enumerate(values)]
            ticket = {"Penstock-Transaction": name, "Penstock-Writer": f"w{step % 2}"}
            if round_number:
                ticket["Penstock-Sequence"] = str(PARTITIONS * (step // 2))
            offsets = []
            for repeat in range(2 if round_number else 1):  # numbered calls may be sent twice
                node = nodes[(round_number + step + repeat) % 3]
                status, published = call(node, f"/v1/topics/{TOPIC}/batch", {"messages": messages}, ticket)
                assert status == 200, published
                offsets.append([result["offset"] for result in published["results"]])
            assert offsets[0] == offsets[-1]
            if round_number < 2:
                expected.update(values)
        assert not is_all_decided(cluster)
        assert not any(value.startswith(f"{round_number}.") for value in read_committed(cluster))
        end = "commit" if round_number < 2 else "abort"
        status, ended = call(
            nodes[(round_number + 1) % 3], f"/v1/transactions/{name}/{end}", {} if end == "commit" else None
        )
        assert status == 200, ended
        late = [{"value": "late", "partition": index} for index in range(PARTITIONS)]
        status, _ = call(nodes[0], f"/v1/topics/{TOPIC}/batch", {"messages": late}, {"Penstock-Transaction": name})
        assert status == 409
    assert read_committed(cluster) == expected
