"""What is staged on three nodes, of which one after the other is killed: every batch is seen once and whole."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.cluster import Cluster

from penstock.spark.values import parse_ddl
from penstock.spark.writing.sink import StreamSink, WrittenRows
from penstock.spark.writing.staging import WriteClaim

PARTITIONS = 4
ROWS = 2_000  # of a batch, by two tasks
SERIES = "spark-query:cluster"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        settings = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic("out", PARTITIONS, 3, config=settings)])["out"].result(60)
        yield cluster


class Job:
    """A driver and two tasks, without Spark around them; now and then it is begun anew and runs its batch again."""

    def __init__(self, cluster: Cluster) -> None:
        servers = ",".join(node.http_url for node in cluster.nodes.values())
        options = {"servers": servers, "topic": "out", "timeout": "180", "batchBytes": "4000", "stagingTimeout": "120"}
        self._sink = StreamSink(options, parse_ddl("value string"))
        self._runs = 0

    def begin_anew(self) -> None:
        self._runs += 1

    def write(self, number: int, task: int, dice: random.Random) -> WrittenRows:
        half = range(number * ROWS + task * ROWS // 2, number * ROWS + (task + 1) * ROWS // 2)

        def batches() -> Iterator[pa.RecordBatch]:
            for first in range(half.start, half.stop, 250):
                yield pa.record_batch({"value": [f"{row}".rjust(100) for row in range(first, first + 250)]})
                time.sleep(dice.random() / 20)

        return self._sink._write(batches(), WriteClaim(SERIES, number, f"run-{self._runs}"))

    def run(self, number: int, dice: random.Random) -> None:
        """One batch, as often as it pleases the dice, and committed at least once."""
        while True:
            written = [self.write(number, task, dice) for task in range(2)]
            if dice.random() < 0.2:
                self.begin_anew()  # killed before it could commit
                continue
            self._sink.commit(written, number)
            if dice.random() < 0.3:
                self.begin_anew()  # killed before it could note that it did
                continue
            return


def rows(cluster: Cluster) -> Counter[int]:
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "unused",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("out", index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    found: Counter[int] = Counter()
    ended: set[int] = set()
    deadline = time.monotonic() + 120
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, "the reader does not get to the end"
        message = consumer.poll(1)
        if message is not None and message.error():
            ended.add(message.partition())
        elif message is not None:
            found[int(message.value())] += 1
    consumer.close()
    return found


def play(cluster: Cluster, batches: int, kill: Callable[[threading.Event], None]) -> None:
    dice = random.Random(11)
    is_over = threading.Event()
    killer = threading.Thread(target=kill, args=(is_over,), daemon=True)
    job = Job(cluster)
    killer.start()
    try:
        for number in range(batches):
            job.run(number, dice)
    finally:
        is_over.set()
        killer.join(180)
    assert rows(cluster) == Counter(range(batches * ROWS))


def test_a_node_that_dies_in_the_middle_costs_no_row_and_doubles_none(cluster: Cluster) -> None:
    def kill(_is_over: threading.Event) -> None:
        """Whoever coordinates the series, or leads what it writes to: one of three is a good guess."""
        time.sleep(1.5)
        cluster.nodes[2].kill()

    play(cluster, 4, kill)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_nodes_that_die_one_after_another_cost_no_row_and_double_none(cluster: Cluster) -> None:
    def kill(is_over: threading.Event) -> None:
        dice = random.Random(5)
        while not is_over.wait(2 + 3 * dice.random()):
            victim = cluster.nodes[dice.choice((1, 2, 3))]
            victim.kill()
            time.sleep(2 * dice.random())
            victim.start()

    play(cluster, 60, kill)
