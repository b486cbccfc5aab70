"""Delays and schedules in a cluster: every node takes every call, and producers by header survive what is killed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.cluster import Cluster, eventually

from penstock import Client
from penstock.errors import ScheduleNotFound

FAR = "2099-12-31T23:59:59Z"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_every_node_takes_every_call(cluster: Cluster, topic: str) -> None:
    urls = [node.http_url for node in cluster.nodes.values()]
    with Client(*urls) as client:
        client.create_topic(topic, partitions=1)
    made: list[str] = []
    for at, url in enumerate(urls):
        with Client(url) as client:
            made += [client.schedules.add(topic, f"{at}-{number}", at=4_000_000_000_000).id for number in range(5)]
            made.append(client.publish(topic, f"{at}-p", delay=3_600).schedule_id)
    answer = httpx.post(f"{urls[0]}/v1/schedules", json={"topic": topic, "value": "s", "at": FAR}, timeout=60)
    made.append(answer.json()["id"])
    for url in urls:
        with Client(url) as client:
            assert {each.id for each in client.schedules.list(topic=topic, page_size=4)} == set(made)
            for each in made:
                assert client.schedules.show(each).topic == topic
            with pytest.raises(ScheduleNotFound):
                client.schedules.show("nobody")
            assert client.schedules.stats().pending >= len(made)
    with Client(urls[1]) as client:
        client.schedules.reschedule(made[0], delay=0)
        client.schedules.run(made[-1])
        deadline = time.monotonic() + 60
        while len(seen := [message.text for message in client.read(topic)]) < 2:
            assert time.monotonic() < deadline, seen
            time.sleep(0.05)
        assert sorted(seen) == ["0-0", "s"]
    with Client(urls[2]) as client:
        for each in made[1:-1]:
            client.schedules.cancel(each)
        eventually(lambda: list(client.schedules.list(topic=topic)) == [])


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_records_delayed_by_header_come_once_each_while_nodes_are_killed(tmp_path: Path, topic: str) -> None:
    """An idempotent producer, delays around its retry time, and kill -9 of whatever leads."""
    chance = random.Random(7)
    with Cluster(tmp_path) as cluster:
        config = {"delay.headers.enable": "true", "min.insync.replicas": "2"}
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(topic, 3, 3, config=config)])[topic].result(60)
        sent = _Sender(cluster, topic)
        sent.start()
        for _ in range(5):
            time.sleep(chance.uniform(2, 4))
            victim = cluster.nodes[chance.choice(list(cluster.nodes))]
            victim.kill()
            time.sleep(chance.uniform(0.5, 2))
            victim.start()
        sent.stop()
        assert len(sent.acked) > 500, "next to nothing was sent"
        values = _read(cluster, topic, len(sent.acked))
    counts = Counter(value for value, _ in values)
    assert [value for value in sent.acked if not counts[value]] == [], "acked and lost"
    assert [each for each in values if counts[each[0]] > 1] == [], "came twice"


class _Sender(threading.Thread):
    """Sends records, most of them for later, until it is stopped."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 2}
        )
        self._is_over = threading.Event()
        self.acked: set[str] = set()

    def run(self) -> None:
        chance, number = random.Random(11), 0
        while not self._is_over.is_set():
            for _ in range(20):
                headers: Any = []
                if chance.random() < 0.8:
                    headers = [("penstock-delay-ms", str(chance.choice([1, 20, 100, 500, 2_000])).encode())]
                self._producer.produce(self._topic, str(number), headers=headers, on_delivery=self._note)
                number += 1
            self._producer.poll(0.05)

    def _note(self, error: object, message: Any) -> None:
        if error is None:
            self.acked.add(message.value().decode())

    def stop(self) -> None:
        self._is_over.set()
        self.join()
        assert self._producer.flush(120) == 0


def _read(cluster: Cluster, topic: str, wanted: int) -> list[tuple[str, str]]:
    """Everything there is and where, once it is as much as is wanted, and for a while after."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "log_level": 2})
    consumer.assign([TopicPartition(topic, at, 0) for at in range(3)])
    values: list[tuple[str, str]] = []
    deadline, quiet_since = time.monotonic() + 90, time.monotonic()
    while time.monotonic() < deadline and (len(values) < wanted or time.monotonic() - quiet_since < 5):
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            place = f"{message.partition()}:{message.offset()} {message.timestamp()[1]} {message.headers()}"
            values.append((message.value().decode(), place))
            quiet_since = time.monotonic()
    consumer.close()
    return values
