"""Three nodes as a user runs them: formed by ``--peers``, killed, wiped, joined by a fourth, without a majority."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.cluster import Cluster, eventually

TOPIC = "orders"
PARTITIONS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        yield cluster


class Writer:
    """Writes numbered messages for as long as it is told to, and remembers which were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: list[str] = []
        self.failed: list[KafkaError] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "message.timeout.ms": 240_000}
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(120) == 0, "messages were neither acknowledged nor refused"

    def _write(self) -> None:
        at = 0
        while not self._is_over.is_set():
            self._producer.produce(TOPIC, value=f"message-{at}", partition=at % PARTITIONS, on_delivery=self._told)
            self._producer.poll(0)
            at += 1
            time.sleep(0.002)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acked.append(message.value().decode())
        else:
            self.failed.append(error)

    def await_more(self, count: int = 50, patience_s: float = 90.0) -> None:
        """Wait until so many more messages were acknowledged: the cluster takes writes."""
        goal = len(self.acked) + count
        eventually(lambda: len(self.acked) >= goal, patience_s, f"{count} more acknowledged writes")


def read_all(cluster: Cluster) -> list[str]:
    """Every message, read from the start to the end."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: list[str] = []
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, f"only partitions {ended} could be read to their end"
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is None:
            found.append(message.value().decode())
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return found


def check_exactly_once(cluster: Cluster, writer: Writer) -> None:
    found = read_all(cluster)
    assert not writer.failed
    assert len(found) == len(set(found)), "a message is there twice"
    assert set(writer.acked) <= set(found), "an acknowledged message is lost"


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_killing_any_node_loses_nothing_and_clients_go_on(cluster: Cluster, victim: int) -> None:
    with Writer(cluster.bootstrap) as writer:
        writer.await_more()
        cluster.nodes[victim].kill()
        writer.await_more()
        eventually(lambda: victim not in cluster.leaders(TOPIC), what="new leaders")
        cluster.nodes[victim].restart()
        eventually(lambda: cluster.replicas_in_sync(TOPIC) == [[1, 2, 3]] * PARTITIONS, 60, "all replicas in sync")
        writer.await_more()
    check_exactly_once(cluster, writer)


def test_a_wiped_node_comes_back_and_catches_up(cluster: Cluster) -> None:
    with Writer(cluster.bootstrap) as writer:
        writer.await_more()
        cluster.nodes[2].kill()
        cluster.nodes[2].wipe()
        writer.await_more()
        cluster.nodes[2].restart()
        eventually(lambda: cluster.replicas_in_sync(TOPIC) == [[1, 2, 3]] * PARTITIONS, 60, "all replicas in sync")
        eventually(lambda: voters(cluster) == [1, 2, 3], 60, "a vote for the wiped node")
        cluster.nodes[1].kill()  # now the wiped node has to count
        writer.await_more()
        cluster.nodes[1].restart()
    check_exactly_once(cluster, writer)


def voters(cluster: Cluster) -> list[int]:
    return [member["node_id"] for member in cluster.ask("/v1/cluster")["quorum"] if member["role"] != "learner"]


def test_without_a_majority_writes_stop_with_an_error_to_try_again_on_and_go_on_when_it_is_back(
    cluster: Cluster,
) -> None:
    with Writer(cluster.bootstrap) as writer:
        writer.await_more()
        cluster.nodes[1].kill()
        cluster.nodes[2].kill()
        time.sleep(3)  # longer than a session
        producer = Producer({"bootstrap.servers": cluster.nodes[3].bootstrap, "message.timeout.ms": 4_000, "acks": -1})
        told: list[KafkaError | None] = []
        producer.produce(TOPIC, value="alone", partition=0, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(60) == 0
        assert told[0] is not None, "a minority took a write"
        problem = refused_publish(cluster.nodes[3].http_url)
        assert problem["retriable"] is True
        cluster.nodes[1].launch()
        cluster.nodes[2].launch()
        writer.await_more()
    check_exactly_once(cluster, writer)


def refused_publish(url: str) -> dict[str, object]:
    request = urllib.request.Request(
        f"{url}/v1/topics/{TOPIC}/publish",
        data=json.dumps({"value": "alone"}).encode(),
        headers={"content-type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code in (503, 504)
    found: dict[str, object] = json.load(refused.value)
    return found


def test_a_fourth_node_joins_takes_partitions_and_one_leaves(cluster: Cluster) -> None:
    with Writer(cluster.bootstrap) as writer:
        writer.await_more()
        cluster.add(4)
        post(cluster, "/v1/cluster/rebalance")
        eventually(lambda: any(4 in in_sync for in_sync in cluster.replicas_in_sync(TOPIC)), 60, "partitions on node 4")
        post(cluster, "/v1/nodes/2/drain")
        eventually(lambda: not any(2 in in_sync for in_sync in cluster.replicas_in_sync(TOPIC)), 60, "node 2 is empty")
        post(cluster, "/v1/nodes/2", method="DELETE")
        cluster.nodes[2].stop()
        writer.await_more()
        eventually(lambda: [node["node_id"] for node in cluster.ask("/v1/nodes", 1)["nodes"]] == [1, 3, 4])
    check_exactly_once(cluster, writer)


def post(cluster: Cluster, path: str, method: str = "POST") -> None:
    request = urllib.request.Request(
        f"{cluster.running[0].http_url}{path}", data=b"{}", headers={"content-type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def test_every_acknowledged_write_outlives_a_kill_of_all_nodes(cluster: Cluster) -> None:
    with Writer(cluster.bootstrap) as writer:
        writer.await_more(200)
        for node in cluster.nodes.values():
            node.kill()
        for node in cluster.nodes.values():
            node.launch()
        writer.await_more()
    check_exactly_once(cluster, writer)
