"""The sink in a real Spark session, against a real broker."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.client.generated.sync import Client
from penstock.testing.local import LocalBroker

# The first test waits for the session as well, which takes a minute where many others want the machine.
pytestmark = pytest.mark.timeout(400)

NewTopic = Callable[..., str]
_PATIENCE_S = 110


def seen(client: Client, topic: str, partitions: int) -> list[Any]:
    return [message for index in range(partitions) for message in client.read(topic, index)]


def texts(client: Client, topic: str, partitions: int) -> list[str]:
    return sorted(message.text for message in seen(client, topic, partitions))


def test_everything_in_a_row_is_in_its_message_and_a_transaction_happens_once(
    spark: Any, broker: LocalBroker, client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(3)
    moment = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    rows = spark.range(300, numPartitions=2).selectExpr(
        "concat('key-', id) AS key",
        "cast(concat('value-', id) AS binary) AS value",
        "map('origin', cast(id AS string)) AS headers",
        "IF(id < 10, cast(id % 3 AS int), NULL) AS partition",
        f"timestamp_millis({int(moment.timestamp() * 1000)} + id) AS timestamp",
    )

    def write(**options: Any) -> None:
        writer = rows.write.format("penstock").option("servers", broker.url).options(**options)
        writer.mode("append").save(topic)

    for version in (0, 1, 0):
        write(txnId=f"write-{topic}", txnVersion=version, compression="zstd")
    found = seen(client, topic, 3)
    assert len(found) == 600
    first = {message.text: message for message in found[:300]} | {message.text: message for message in found}
    assert len(first) == 300
    for number in (0, 1, 42, 299):
        message = first[f"value-{number}"]
        assert (message.key, message.timestamp) == (b"key-%d" % number, moment + timedelta(milliseconds=number))
        assert dict(message.headers) == {"origin": str(number).encode()}
        if number < 10:
            assert message.partition == number % 3
    placed = {message.key: message.partition for message in found}
    client.publish(topic, "like any other producer", key="key-42")
    (other,) = [message for message in seen(client, topic, 3) if message.text == "like any other producer"]
    assert other.partition == placed[b"key-42"]


def test_a_stream_writes_every_row_once_though_its_driver_forgot_that_it_did(
    spark: Any, broker: LocalBroker, client: Client, new_topic: NewTopic, tmp_path: Path
) -> None:
    """A driver killed between the broker's commit and Spark's own is a checkpoint without its last commit."""
    source, target, mark = new_topic(2), new_topic(3), tmp_path / "mark"
    for partition in (0, 1):
        client.publish_many(source, [f"{partition}-{at}".encode() for at in range(500)], partition=partition)

    def run() -> Any:
        read = spark.readStream.format("penstock").option("servers", broker.url).option("maxRecordsPerTrigger", 400)
        rows = read.load(source).selectExpr("key", "value").repartition(2)
        writer = rows.writeStream.format("penstock").option("servers", broker.url).option("topic", target)
        query = writer.option("checkpointLocation", str(mark)).trigger(availableNow=True).start()
        assert query.awaitTermination(_PATIENCE_S)
        return query

    query = run()
    expected = sorted(f"{partition}-{at}" for partition in (0, 1) for at in range(500))
    assert texts(client, target, 3) == expected
    numbers = sorted(int(path.name) for path in (mark / "commits").iterdir() if path.name.isdigit())
    assert len(numbers) > 2
    # These names are not in Spark's documentation: the sink stands on them.
    ledger = httpx.get(f"{broker.url}/v1/series/spark-query:{query.id}").json()
    assert ledger["committed"] == numbers[-1]
    assert ledger["run"] == query.runId

    for forgotten in (str(numbers[-1]), f".{numbers[-1]}.crc"):
        (mark / "commits" / forgotten).unlink(missing_ok=True)
    client.publish_many(source, [b"more"], partition=0)
    again = run()
    assert again.id == query.id
    assert again.runId != query.runId
    assert texts(client, target, 3) == sorted([*expected, "more"])
    assert httpx.get(f"{broker.url}/v1/series/spark-query:{query.id}").json()["run"] == again.runId


def test_mistakes_are_told_in_words_and_nothing_is_written(
    spark: Any, broker: LocalBroker, client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    for columns, options, told in (
        (["id AS value"], {"topic": topic}, "Column 'value' is string or binary, not bigint"),
        (["cast(id AS string) AS value"], {}, "Name the topic"),
        (["cast(id AS string) AS value"], {"topic": topic, "txn": "x"}, "did you mean 'txnId'"),
        (
            ["cast(id AS string) AS value", f"IF(id < 2, '{topic}', NULL) AS topic"],
            {},
            "A row has no topic",
        ),
    ):
        writer = spark.range(3).coalesce(1).selectExpr(*columns).write.format("penstock")
        with pytest.raises(Exception, match=told):
            writer.option("servers", broker.url).options(**options).mode("append").save()
    assert seen(client, topic, 1) == []


def test_a_broker_that_is_restarted_in_the_middle_loses_and_doubles_nothing(spark: Any, tmp_path: Path) -> None:
    with LocalBroker(settings={"defaults.topic.partitions": 2}, data_dir=tmp_path / "data") as broker:
        client = broker.client()
        client.publish_many("in", [str(at).encode() for at in range(1000)], partition=0)
        read = spark.readStream.format("penstock").option("servers", broker.url).option("maxRecordsPerTrigger", 250)
        writer = read.load("in").selectExpr("value").writeStream.format("penstock").option("servers", broker.url)
        writer = writer.option("checkpointLocation", str(tmp_path / "mark")).trigger(processingTime="0 seconds")
        exact = writer.option("topic", "out").start()
        broker.restart()
        client.publish_many("in", [str(at).encode() for at in range(1000, 1500)], partition=1)
        exact.processAllAvailable()
        broker.restart()
        client.publish_many("in", [b"last"], partition=1)
        exact.processAllAvailable()
        exact.stop()
        assert texts(client, "out", 2) == sorted([*map(str, range(1500)), "last"])
        client.close()


def test_at_least_once_writes_a_batch_again_and_an_empty_batch_is_no_trouble(
    spark: Any, broker: LocalBroker, client: Client, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target, mark = new_topic(1), new_topic(1), tmp_path / "mark"

    def run(where: str, **options: str) -> None:
        read = spark.readStream.format("penstock").option("servers", broker.url).load(source)
        writer = read.selectExpr("value").where(where).writeStream.format("penstock").option("servers", broker.url)
        writer = writer.option("topic", target).options(**options).option("checkpointLocation", str(mark))
        assert writer.trigger(availableNow=True).start().awaitTermination(_PATIENCE_S)

    client.publish_many(source, [b"a", b"b"])
    run("value IS NULL")  # exactly once, and not a row
    assert texts(client, target, 1) == []
    client.publish_many(source, [b"c"])
    run("true", delivery="at-least-once")
    assert texts(client, target, 1) == ["c"]
    shutil.rmtree(mark / "commits")  # Spark runs its last batch again
    run("true", delivery="at-least-once")
    assert texts(client, target, 1) == ["c", "c"]


def test_workers_are_known_as_those_that_spark_keeps(spark: Any) -> None:
    """They are told from the driver by what Spark runs them as, which is nowhere promised."""
    from penstock.spark.connection import is_kept_worker

    assert not is_kept_worker()
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: is_kept_worker()).collect() == [True]
