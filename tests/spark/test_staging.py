"""What attempts of tasks stage in a real broker, and what becomes of it; without Spark around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest

from penstock.client.generated.sync import Client
from penstock.errors import InvalidRecord, InvalidTxnState, SeriesFenced, TransactionEnded
from penstock.spark.values import parse_ddl
from penstock.spark.writing.sink import BatchSink, StreamSink, WrittenRows
from penstock.spark.writing.staging import WriteClaim
from penstock.testing.local import LocalBroker

NewTopic = Callable[..., str]
SCHEMA = parse_ddl("key string, value string")


def rows(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"key": list(values), "value": list(values)})


class Driver:
    """A driver and its tasks, as far as the sink sees them."""

    def __init__(self, broker: LocalBroker, topic: str, query: str, run: str, **options: str) -> None:
        self.sink = StreamSink({"servers": broker.url, "topic": topic, **options}, SCHEMA)
        self.query, self.run = query, run

    def write(self, number: int, *batches: pa.RecordBatch) -> WrittenRows:
        return self.sink._write(iter(batches), WriteClaim(self.query, number, self.run))


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic(3)


@pytest.fixture
def drive(broker: LocalBroker, topic: str) -> Callable[..., Driver]:
    query = f"spark-query:{uuid4()}"
    return lambda run="run-1", **options: Driver(broker, topic, query, run, **options)


def seen(client: Client, topic: str) -> list[str]:
    return sorted(message.text for index in range(3) for message in client.read(topic, index))


def test_a_batch_is_seen_whole_with_its_commit(client: Client, topic: str, drive: Callable[..., Driver]) -> None:
    driver = drive()
    written = [driver.write(0, rows("a", "b"), rows("c"))]
    assert seen(client, topic) == []
    driver.sink.commit(written, 0)
    driver.sink.commit(written, 0)
    assert seen(client, topic) == ["a", "b", "c"]


def test_a_driver_that_is_replaced_can_neither_write_nor_commit(
    client: Client, topic: str, drive: Callable[..., Driver]
) -> None:
    older, newer = drive("run-1"), drive("run-2")
    left = older.write(0, rows("a", "b"))
    written = newer.write(0, rows("a", "b"))
    with pytest.raises(SeriesFenced, match="run-2"):
        older.sink.commit([left], 0)
    with pytest.raises(SeriesFenced, match="run-2"):
        older.write(0, rows("c"))
    newer.sink.commit([written], 0)
    assert seen(client, topic) == ["a", "b"]


def test_a_driver_that_died_after_the_commit_runs_the_batch_again_for_nothing(
    client: Client, topic: str, drive: Callable[..., Driver]
) -> None:
    first, second = drive("run-1"), drive("run-2")
    first.sink.commit([first.write(0, rows("a"))], 0)
    again = second.write(0, rows("a"))
    assert again.transaction is None
    second.sink.commit([again], 0)
    second.sink.commit([second.write(1, rows("b"))], 1)
    assert seen(client, topic) == ["a", "b"]


def test_an_orphan_is_aborted_after_its_time(broker: LocalBroker, client: Client, topic: str) -> None:
    query = f"spark-query:{uuid4()}"
    driver = Driver(broker, topic, query, "run-1", stagingTimeout="1")
    written = driver.write(0, rows("orphan"))
    client.publish(topic, "behind", partition=0)
    deadline = time.monotonic() + 60
    while httpx.get(f"{broker.url}/v1/series/{query}").json()["state"] != "aborted":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(TransactionEnded):
        driver.sink.commit([written], 0)
    assert seen(client, topic) == ["behind"]
    driver.sink.commit([driver.write(0, rows("again"))], 0)
    assert seen(client, topic) == ["again", "behind"]


def test_a_slow_task_keeps_what_is_staged(client: Client, topic: str, drive: Callable[..., Driver]) -> None:
    """Spark hands over rows as they come: longer than the time in which orphans are aborted, if need be."""
    driver = drive(stagingTimeout="2")

    def slowly() -> Any:
        for value in ("a", "b"):
            yield rows(value)
            time.sleep(2.3)

    written = driver.sink._write(slowly(), WriteClaim(driver.query, 0, driver.run))
    driver.sink.commit([written], 0)
    assert seen(client, topic) == ["a", "b"]


def test_staged_rows_that_were_lost_between_tasks_are_not_committed_in_part(
    client: Client, topic: str, drive: Callable[..., Driver]
) -> None:
    driver = drive()
    first = driver.write(0, rows("a"))
    driver.sink.abort([first], 0)
    second = driver.write(0, rows("b"))
    with pytest.raises(InvalidTxnState, match="stagingTimeout"):
        driver.sink.commit([first, second], 0)
    assert seen(client, topic) == []


def test_rows_without_number_or_end_arrive_in_order(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    """Many batches for few partitions, sent in pieces: each partition has its rows in the order they came in."""
    topic = new_topic(2)
    options = {"servers": broker.url, "topic": topic, "batchBytes": "2000", "compression": "lz4"}
    sink = BatchSink(options, parse_ddl("value string, partition int"))
    batches = [
        pa.record_batch(
            {
                "value": [f"{at:05}" + "x" * 200 for at in range(first, first + 500)],
                "partition": pa.array([at % 2 for at in range(first, first + 500)], pa.int32()),
            }
        )
        for first in range(0, 5_000, 500)
    ]
    sink.commit([sink.write(iter(batches))])
    for index in range(2):
        found = [int(message.text[:5]) for message in client.read(topic, index)]
        assert found == list(range(index, 5_000, 2))


def test_a_partition_that_is_not_there_is_told_of(broker: LocalBroker, topic: str) -> None:
    sink = BatchSink({"servers": broker.url, "topic": topic}, parse_ddl("value string, partition int"))
    batch = pa.record_batch({"value": ["x"], "partition": pa.array([3], pa.int32())})
    with pytest.raises(InvalidRecord, match="has 3 partitions"):
        sink.write(iter([batch]))


def test_a_write_that_fails_holds_nobody_back(broker: LocalBroker, client: Client, topic: str) -> None:
    """The only task has failed, so that there is no message to tell what it left."""
    sink = BatchSink({"servers": broker.url, "topic": topic}, parse_ddl("value string, partition int"))

    def batches() -> Any:
        yield pa.record_batch({"value": ["x" * 200] * 50_000, "partition": pa.array([0] * 50_000, pa.int32())})
        deadline = time.monotonic() + 60
        while not httpx.get(f"{broker.url}/v1/topics/{topic}").json()["messages"]:
            assert time.monotonic() < deadline
        raise ValueError("a row that cannot be computed")

    with pytest.raises(ValueError, match="cannot be computed"):
        sink.write(batches())
    client.publish(topic, "behind", partition=0)
    assert seen(client, topic) == []
    sink.abort([None])
    assert seen(client, topic) == ["behind"]


def test_rows_for_later_are_scheduled_with_the_commit_and_once(
    broker: LocalBroker, client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    due = (int(time.time()) + 3_600) * 1_000
    schema = parse_ddl("value string, deliver_at long, priority string, headers map<string, string>")
    kind = pa.map_(pa.string(), pa.string())
    options = {"servers": broker.url, "topic": topic, "txnId": f"later-{topic}"}

    def batch(*places: int) -> pa.RecordBatch:
        full = {
            "value": ["now", "later", "later", "past"],
            "deliver_at": pa.array([None, due, due, 1_000]),
            "priority": [None, "high", "high", None],
            "headers": pa.array([[("a", "b")]] * 4, kind),
        }
        return pa.record_batch({name: pa.array(column).take(pa.array(places)) for name, column in full.items()})

    def pending() -> list[dict[str, Any]]:
        found = httpx.get(f"{broker.url}/v1/schedules", params={"topic": topic, "limit": 100}).json()
        schedules: list[dict[str, Any]] = found["schedules"]
        return schedules

    first = BatchSink(options, schema)
    written = first.write(iter([batch(0, 1, 2, 3)]))
    assert pending() == []
    # A driver that dies between the two halves of its commit, and the next one with its rows in another order.
    first._schedule(f"{first._series}/0", written.later[:2])
    second = BatchSink(options, schema)
    second.commit([second.write(iter([batch(2, 3)])), second.write(iter([batch(1, 0)]))])
    assert len(pending()) == 2
    deadline = time.monotonic() + 120
    while sorted(message.text for message in client.read(topic)) != ["now", "past"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    third = BatchSink(options, schema)
    third.commit([third.write(iter([batch(0, 1, 2, 3)]))])
    assert len(pending()) == 2


def test_a_batch_without_rows_is_committed_and_tasks_without_rows_stage_nothing(
    broker: LocalBroker, client: Client, topic: str, drive: Callable[..., Driver]
) -> None:
    driver = drive()
    nothing = [driver.write(0), driver.write(0, rows())]
    assert [each.transaction for each in nothing] == [None, None]
    driver.sink.commit(nothing, 0)
    assert httpx.get(f"{broker.url}/v1/series/{driver.query}").json()["committed"] == 0
    driver.sink.commit([], 1)
    driver.sink.commit([driver.write(2, rows("a")), driver.write(2)], 2)
    assert seen(client, topic) == ["a"]
