"""Pipelines in real Spark sessions, classic and by Connect, against a real broker."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.client.generated.sync import Client
from penstock.pipelines.files import load
from penstock.pipelines.lake.catalog import Catalog
from penstock.pipelines.run import PipelineRun, RunStatus
from penstock.testing.local import LocalBroker

# Spark starts a handful of Python processes for every query: minutes on a machine that is busy.
pytestmark = pytest.mark.timeout(900)

NewTopic = Callable[..., str]


class Place:
    """A directory with pipelines in it, and what runs them."""

    def __init__(self, directory: Path, spark: Any, broker: LocalBroker, *, kind: str) -> None:
        self.directory = directory
        self.kind = kind
        self.spark = spark
        self._broker = broker
        self.told: list[str] = []
        self.reports: list[dict[str, Any]] = []

    def run(self, name: str, text: str = "") -> RunStatus:
        path = self.directory / name
        if text:
            path.write_text(text.replace("SERVERS", self._broker.url))
        return PipelineRun(load(path), self.spark, report=self._report, tell=self.told.append).go()

    def _report(self, report: dict[str, Any]) -> bool:
        self.reports.append(report)
        return False


@pytest.fixture(params=["classic", "connect"])
def place(request: pytest.FixtureRequest, tmp_path: Path, broker: LocalBroker) -> Place:
    kind = "spark" if request.param == "classic" else "remote"
    return Place(tmp_path, request.getfixturevalue(kind), broker, kind=request.param)


def messages(client: Client, topic: str, partitions: int = 1) -> list[Any]:
    return [message for index in range(partitions) for message in client.read(topic, index)]


def orders(first: int, count: int) -> list[bytes]:
    rows = [
        {
            "id": None if at % 10 == 0 else f"o{at}",
            "amount": -1 if at % 10 == 1 else at,
            "city": "Oslo" if at % 2 else "Rome",
        }
        for at in range(first, first + count)
    ]
    return [json.dumps(row).encode() for row in rows]


def test_rows_go_through_steps_and_expectations_and_a_second_run_goes_on(
    place: Place, client: Client, new_topic: NewTopic
) -> None:
    topic, totals, odd = new_topic(), new_topic(), new_topic()
    client.publish_many(topic, orders(0, 100))
    text = f"""
pipeline: orders
servers: SERVERS
trigger: available-now
sources:
  orders: {{topics: {topic}, schema: "id STRING, amount INT, city STRING"}}
expectations:
  orders:
    - {{name: has an id, check: id IS NOT NULL, otherwise: drop}}
    - {{name: costs something, check: amount >= 0, otherwise: dead-letter, topic: {odd}}}
steps:
  totals: SELECT city, count(*) AS orders FROM orders GROUP BY city
sinks:
  lake: {{from: orders, format: parquet, path: out, partitionBy: city}}
"""
    changes = f"  totals: {{from: totals, topic: {totals}, mode: update, key: city}}\n"
    if place.kind == "connect":
        refused = place.run("refused.yaml", text.replace("pipeline: orders", "pipeline: refused") + changes)
        assert "over Spark Connect, topics take no `mode: update`" in (refused.error or "")
    else:
        text += changes
    status = place.run("orders.yaml", text)
    assert (status.state, status.error) == ("finished", None)
    figures = {each.name: each for each in status.figures}
    assert figures["lake"].unmet == {"has an id": 10, "costs something": 10}
    assert (figures["lake"].rows, figures["lake"].lag) == (100, 0)
    letters = messages(client, odd)
    assert len(letters) == 10
    assert json.loads(letters[0].value) == {"id": "o1", "amount": -1, "city": "Oslo"}
    assert dict(letters[0].headers) == {
        "penstock-dlq-reason": b"orders: costs something",
        "penstock-dlq-topic": topic.encode(),
        "penstock-dlq-partition": b"0",
        "penstock-dlq-offset": b"1",
    }
    assert place.spark.read.parquet(str(place.directory / "out")).count() == 80
    if place.kind == "classic":
        assert _last_of_each_key(messages(client, totals)) == {"Oslo": 40, "Rome": 40}

    client.publish_many(topic, orders(100, 10))
    assert place.run("orders.yaml").state == "finished"
    assert place.spark.read.parquet(str(place.directory / "out")).count() == 88
    assert len(messages(client, odd)) == 11
    assert [report["state"] for report in place.reports][-1] == "finished"
    if place.kind == "connect":
        return
    found = messages(client, totals)
    assert _last_of_each_key(found) == {"Oslo": 44, "Rome": 44}
    assert len(found) == 4, "a group that changes is written once for each batch"


def _last_of_each_key(found: list[Any]) -> Mapping[str, int]:
    return {message.key.decode(): json.loads(message.value)["orders"] for message in found}


def test_mistakes_name_their_line(place: Place, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    new_topic(name=f"{topic}-large")
    client.publish_many(topic, orders(0, 20))
    text = f"""pipeline: wrong
servers: SERVERS
trigger: available-now
sources:
  orders: {{topics: {topic}, schema: "id STRING, amount INT"}}
steps:
  large: SELECT id, amuont FROM orders
sinks:
  large: {{from: large, topic: {topic}-large}}
"""
    status = place.run("wrong.yaml", text)
    assert status.state == "failed"
    assert "wrong.yaml:7:10: " in (status.error or "")
    assert "amuont" in (status.error or "")

    right = text.replace("amuont", "amount")
    unknown = place.run("unknown.yaml", right.replace(f"topics: {topic}", "topics: nowhere"))
    assert "There is no topic nowhere." in (unknown.error or "")

    failed = place.run("strict.py", _STRICT.replace("TOPIC", topic))
    assert (failed.error or "").startswith("A row of 'orders' does not meet 'has an id' (id IS NOT NULL): {")
    assert not messages(client, f"{topic}-large"), "nothing of a batch that fails is seen"


_STRICT = """
from penstock.pipelines import Pipeline

strict = Pipeline("strict", servers="SERVERS", trigger="available-now")
strict.source("orders", topics="TOPIC", schema="id STRING, amount INT")
strict.expect("orders", "id IS NOT NULL", name="has an id", otherwise="fail")


@strict.step
def large(spark, orders):
    return orders.where("amount > 3").select("id", "amount")


strict.sink("large", topic="TOPIC-large", key="id")
"""


@pytest.mark.parametrize(
    "place", ["classic", pytest.param("connect", marks=pytest.mark.soak)], indirect=True
)  # by Connect, each batch takes a process of its own
def test_an_archive_brings_topics_back_to_a_point_in_time(
    place: Place, broker: LocalBroker, client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(3, max_message_bytes=3_000_000, retention_ms=900_000_000, queue_tries=7)
    begin_ms = int(time.time() * 1000) - 3 * 3_600_000
    cut_ms = begin_ms + 800 * 10_000
    _produce(broker, topic, range(1000), begin_ms)
    before = _consumed(broker, topic, 3)
    archive = f"""
pipeline: archive-{topic}
servers: SERVERS
uses: archive
with: {{topics: {topic}, lake: lake, maxRecordsPerTrigger: 60, compactEvery: 5}}
trigger: available-now
"""
    assert place.run("archive.yaml", archive).error is None
    catalog = Catalog.load(place.directory / "lake")
    assert sum(file.rows for file in catalog.files.values()) == 1000
    assert catalog.removed, "small files were merged"
    # Whoever archives the same again, from another checkpoint, adds nothing.
    again = archive.replace("archive-", "again-").replace("maxRecordsPerTrigger: 60, ", "")
    assert place.run("again.yaml", again).error is None
    assert sum(file.rows for file in Catalog.load(place.directory / "lake").files.values()) == 1000

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(60)
    restore = f"""
pipeline: restore-{topic}
servers: SERVERS
uses: restore
with: {{topics: {topic}, lake: lake, until: {cut_ms}, portionRows: 500}}
"""
    for _ in range(2):  # the second time there is nothing left to do
        assert place.run("restore.yaml", restore).error is None
    assert place.told[-1] == "800 messages are there, with the counts and checksums of the lake."
    after = _consumed(broker, topic, 3)
    assert after == {index: [each for each in some if each[0] < cut_ms] for index, some in before.items()}
    assert sum(len(some) for some in after.values()) == 800
    configs = httpx.get(f"{broker.url}/v1/topics/{topic}").json()["configs"]
    assert configs["retention.ms"] == "-1", "or old messages would go at once"
    assert (configs["max.message.bytes"], configs["queue.tries"]) == ("3000000", "7")
    assert any("retention.ms=900000000" in line for line in place.told)

    replay = f"""
pipeline: replay-{topic}
servers: SERVERS
uses: replay
with: {{topics: {topic}, lake: lake, topic: {topic}, timestamps: now, until: {cut_ms}}}
"""
    for _ in range(2):  # once, though it is run again
        assert place.run("replay.yaml", replay).error is None
    twice = _consumed(broker, topic, 3)
    for index, some in after.items():
        assert twice[index][: len(some)] == some
        assert [each[1:] for each in twice[index][len(some) :]] == [each[1:] for each in some], "without their times"
        assert all(each[0] > cut_ms for each in twice[index][len(some) :])


def _produce(broker: LocalBroker, topic: str, numbers: range, begin_ms: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 3_000_000})
    dice = random.Random(7)
    for at in numbers:
        small = None if at % 11 == 0 else dice.randbytes(dice.randrange(300))
        producer.produce(
            topic,
            key=None if at % 7 == 0 else b"key-%d" % dice.randrange(50),
            value=dice.randbytes(2 * 1024 * 1024) if at == 500 else small,
            headers=[("number", b"%d" % at), ("number", None), ("empty", b"")] if at % 3 else None,
            partition=dice.randrange(3),
            timestamp=begin_ms + at * 10_000,
        )
    assert producer.flush(60) == 0


def _consumed(broker: LocalBroker, topic: str, partitions: int) -> dict[int, list[tuple[Any, ...]]]:
    """Everything in a topic as Kafka's own client has it: time, key, value and headers, in order."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.partition.eof": True})
    found: dict[int, list[tuple[Any, ...]]] = {index: [] for index in range(partitions)}
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    ended = 0
    deadline = time.monotonic() + 120
    while ended < partitions:
        assert time.monotonic() < deadline, "it takes too long"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            ended += 1
            continue
        found[message.partition()].append((message.timestamp()[1], message.key(), message.value(), message.headers()))
    consumer.close()
    return found
