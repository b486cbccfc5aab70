"""The source's readers against a real broker, as Spark calls them, without a JVM in between."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from penstock.client.generated.sync import Client
from penstock.client.values import Draft
from penstock.errors import DataLost, InvalidConfig, NodesUnreachable, UnknownTopic, UnreadableValue, WrongPort
from penstock.spark.reading.batch import BatchReader
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.streaming import StreamReader
from penstock.testing.local import LocalBroker

NewTopic = Callable[..., str]
ALL = ReadAllAvailable()


def batch_rows(broker: LocalBroker, **options: str) -> list[dict[str, Any]]:
    reader = BatchReader(SourceOptions.of({"servers": broker.url, **options}, is_streaming=False))
    return rows(reader, reader.partitions())


def rows(reader: Any, partitions: Iterable[Any]) -> list[dict[str, Any]]:
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def values(found: list[dict[str, Any]]) -> list[Any]:
    return [row["value"] for row in found]


def stream(broker: LocalBroker, **options: str) -> StreamReader:
    return StreamReader(SourceOptions.of({"servers": broker.url, **options}, is_streaming=True))


class Query:
    """What Spark does with a stream: offsets are kept, and what lies between two of them is read."""

    def __init__(self, reader: StreamReader, start: dict[str, Any] | None = None) -> None:
        self.reader = reader
        self.at = reader.initialOffset() if start is None else start

    def step(self, limit: Any = None) -> list[Any]:
        before = json.loads(json.dumps(self.at))
        self.at = self.reader.latestOffset(before, limit or self.reader.getDefaultReadLimit())
        if json.dumps(before) == json.dumps(self.at):
            return []
        return values(rows(self.reader, self.reader.partitions(before, self.at)))


def delete_before(broker: LocalBroker, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result()


def make_anew(broker: LocalBroker, topic: str) -> None:
    rest(broker, "DELETE", f"/v1/topics/{topic}")
    rest(broker, "POST", "/v1/topics", {"name": topic, "partitions": 1})


def rest(broker: LocalBroker, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.url + path, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request) as answer:
        text = answer.read()
    return json.loads(text) if text else None


# -- batch reads -------------------------------------------------------------------------------------------------------


def test_a_row_is_the_whole_message(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    drafts = [Draft(b"v", key=b"k", headers=[("a", b"1"), ("a", None)], timestamp=1700.25), Draft(None, key=None)]
    client.publish_many(topic, drafts, partition=1)
    first, second = batch_rows(broker, topics=topic, includeHeaders="true")
    stamp = first.pop("timestamp")
    assert stamp.timestamp() == 1700.25
    assert first == {
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "key": b"k",
        "value": b"v",
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    }
    assert (second["key"], second["value"], second["headers"]) == (None, None, [])
    assert batch_rows(broker, path=topic, columns="offset,value") == [
        {"offset": 0, "value": b"v"},
        {"offset": 1, "value": None},
    ]


def test_batches_end_where_they_are_told_to(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(2, retention_ms=-1)  # messages of long ago
    for partition in (0, 1):
        drafts = [Draft(b"%d" % at, timestamp=1000.0 + at) for at in range(100)]
        client.publish_many(topic, drafts, partition=partition)
    starts, ends = json.dumps({topic: {"0": 90, "1": -1}}), json.dumps({topic: {"0": 95}})
    assert values(batch_rows(broker, topics=topic, startingOffsets=starts, endingOffsets=ends)) == [
        b"90",
        b"91",
        b"92",
        b"93",
        b"94",
    ]
    found = batch_rows(broker, topics=topic, startingTimestamp="1098000", endingTimestamp="1970-01-01T00:18:19Z")
    assert [(row["partition"], row["value"]) for row in found] == [(0, b"98"), (1, b"98")]


def test_instants_may_differ_by_partition(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(12, retention_ms=-1)  # messages of long ago
    for partition in range(12):
        client.publish_many(topic, [Draft(b"%d" % at, timestamp=1000.0 + at) for at in range(20)], partition=partition)
    begins = {str(at): 1_000_000 + 1000 * (at + 1) for at in range(11)}  # more than a node looks up in one call
    ends = {"0": 1_003_000}
    found = batch_rows(
        broker,
        subscribe=topic,
        startingOffsetsByTimestamp=json.dumps({topic: begins}),
        endingOffsetsByTimestamp=json.dumps({topic: ends}),
    )
    firsts = {at: min(row["offset"] for row in found if row["partition"] == at) for at in range(12)}
    assert firsts == {at: at + 1 for at in range(11)} | {11: 0}
    assert [row["offset"] for row in found if row["partition"] == 0] == [1, 2]


def test_only_assigned_partitions_are_read(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    for partition in range(3):
        client.publish(topic, b"%d" % partition, partition=partition)
    assigned = json.dumps({topic: [0, 2]})
    assert sorted(values(batch_rows(broker, assign=assigned))) == [b"0", b"2"]
    query = Query(stream(broker, assign=assigned))
    assert sorted(query.step()) == [b"0", b"2"]
    client.publish(topic, b"other", partition=1)
    assert query.step() == [], "what is not assigned is no news"
    client.publish(topic, b"more", partition=2)
    assert query.step() == [b"more"]
    with pytest.raises(InvalidConfig, match="has 3 partitions"):
        batch_rows(broker, assign=json.dumps({topic: [3]}))


def test_a_stream_says_where_it_begins_by_default(
    broker: LocalBroker, client: Client, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    client.publish(topic, b"x")
    at = stream(broker, topics=topic).initialOffset()
    assert f"begins at the earliest messages of {topic}" in caplog.text
    caplog.clear()
    stream(broker, topics=topic, startingOffsets="earliest").initialOffset()
    Query(stream(broker, topics=topic), at).step()
    assert "begins at" not in caplog.text, "it is said, or begun already"


def test_a_kafka_address_is_recognised(broker: LocalBroker) -> None:
    options = {"servers": broker.bootstrap, "topics": "orders", "timeout": "1"}
    with pytest.raises(WrongPort, match=f"Kafka port of a Penstock node. The HTTP address is {broker.url}"):
        BatchReader(SourceOptions.of(options, is_streaming=False)).partitions()


def test_a_partition_is_split_for_more_tasks(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.publish_many(topic, [b"%d" % at for at in range(1000)])
    options = {"servers": broker.url, "topics": topic, "minPartitions": "7"}
    reader = BatchReader(SourceOptions.of(options, is_streaming=False))
    partitions = reader.partitions()
    assert len(partitions) == 7
    assert values(rows(reader, partitions)) == [b"%d" % at for at in range(1000)]


def test_only_what_is_committed_is_read(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with client.transaction() as transaction:
        transaction.publish(topic, b"kept")
    with client.transaction() as transaction:
        transaction.publish(topic, b"aborted")
        transaction.abort()
    client.publish(topic, b"plain")
    with client.transaction() as transaction:
        transaction.publish(topic, b"open")
        assert values(batch_rows(broker, topics=topic)) == [b"kept", b"plain"]
        seen = values(batch_rows(broker, topics=topic, isolation="read_uncommitted"))
        assert seen == [b"kept", b"aborted", b"plain", b"open"]
    assert values(batch_rows(broker, topics=topic)) == [b"kept", b"plain", b"open"]


def test_compressed_batches_are_read(broker: LocalBroker, new_topic: NewTopic) -> None:
    topic = new_topic()
    wanted: list[bytes] = []
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        with Client(broker.url, compression=codec) as other:
            wanted += [f"{codec}{at}".encode() * 20 for at in range(50)]
            other.publish_many(topic, wanted[-50:])
    assert values(batch_rows(broker, topics=topic)) == wanted


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"topics": "nowhere"}, UnknownTopic, "no topic nowhere"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, InvalidConfig, "not among the topics"),
        ({"startingOffsets": '{"TOPIC": {"5": 1}}'}, InvalidConfig, "has 1 partitions"),
        ({"startingOffsets": '{"TOPIC": {"0": 77}}'}, DataLost, "ends at offset 3, before 77"),
        ({"endingOffsets": '{"TOPIC": {"0": 4}}'}, InvalidConfig, "up to 3 at the moment"),
    ],
)
def test_offsets_that_are_not_there_are_refused(
    broker: LocalBroker, client: Client, new_topic: NewTopic, options: dict[str, str], error: type[Exception], told: str
) -> None:
    topic = new_topic()
    client.publish_many(topic, [b"a", b"b", b"c"])
    given = {"topics": topic, **{name: text.replace("TOPIC", topic) for name, text in options.items()}}
    with pytest.raises(error, match=told):
        batch_rows(broker, **given)


def test_a_cluster_that_is_not_there_is_told_soon() -> None:
    began = time.monotonic()
    options = SourceOptions.of({"servers": "127.0.0.1:1", "topics": "t", "timeout": "0.5"}, is_streaming=False)
    with pytest.raises(NodesUnreachable, match=r"127\.0\.0\.1:1"):
        BatchReader(options).partitions()
    assert time.monotonic() - began < 20


# -- values of a schema ------------------------------------------------------------------------------------------------

ROWS = (b'{"id": 1, "tags": ["a"]}', b'{"id": "x"}', b"not json", None, b'{"tags": [null], "more": true}')


def test_values_are_parsed_and_a_bad_one_is_the_end_of_it(
    broker: LocalBroker, client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    client.publish_many(topic, [ROWS[0], ROWS[3], ROWS[4]])
    schema = "id BIGINT, tags ARRAY<STRING>"
    assert values(batch_rows(broker, topics=topic, schema=schema)) == [
        {"id": 1, "tags": ["a"]},
        None,
        {"id": None, "tags": [None]},
    ]
    client.publish(topic, ROWS[1])
    with pytest.raises(UnreadableValue, match=r"offset 3: Expected `int \| null`, got `str` - at `\$.id`"):
        batch_rows(broker, topics=topic, schema=schema)


def test_bad_values_are_dropped_or_become_dead_letters(
    broker: LocalBroker, client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    client.publish_many(topic, [Draft(value, key=b"k%d" % at, headers={"h": b"1"}) for at, value in enumerate(ROWS)])
    schema = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
    found = batch_rows(broker, topics=topic, schema=schema, onError="drop", columns="offset,value")
    assert [row["offset"] for row in found] == [0, 3, 4]
    assert found[0]["value"] == {"id": 1}
    found = batch_rows(broker, topics=topic, schema=schema, onError="dead-letter", columns="value")
    assert values(found) == [{"id": 1}, None, {"id": None}]
    letters = batch_rows(broker, topics=f"{topic}.dlq", includeHeaders="true")
    assert sorted((row["key"], row["value"]) for row in letters) == [(b"k1", ROWS[1]), (b"k2", ROWS[2])]
    told = {header["key"]: header["value"] for header in letters[0]["headers"]}
    assert told["h"] == b"1"
    assert told["penstock-dlq-topic"] == topic.encode()
    assert b"Expected" in told["penstock-dlq-reason"] or b"malformed" in told["penstock-dlq-reason"]


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_where_it_was_and_is_seen_as_a_group(
    broker: LocalBroker, client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    client.publish_many(topic, [b"%d" % at for at in range(100)], partition=0)
    query = Query(stream(broker, topics=topic))
    assert len(query.step()) == 100
    assert query.step() == []  # and this says that the first hundred are done
    client.publish_many(topic, [b"later"] * 10, partition=1)
    again = Query(stream(broker, topics=topic), query.at)
    assert again.step() == [b"later"] * 10
    assert again.at["group"].startswith("spark-")
    deadline = time.monotonic() + 90
    while (lag := lag_of(broker, again.at["group"])) != 10 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lag == 10
    again.reader.commit(again.at)
    while (lag := lag_of(broker, again.at["group"])) != 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lag == 0


def lag_of(broker: LocalBroker, group: str) -> int | None:
    groups = rest(broker, "GET", "/v1/groups")["groups"]
    return next((found["lag"] for found in groups if found["group"] == group), None)


def test_limits_are_shared_by_what_waits(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    client.publish_many(topic, [b"x" * 1000] * 900, partition=0)
    client.publish_many(topic, [b"x" * 1000] * 100, partition=1)
    query = Query(stream(broker, topics=topic, maxRecordsPerTrigger="100", group="named"))
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(100)
    assert len(query.step()) == 100
    assert query.at["topics"][topic]["offsets"] == {"0": 90, "1": 10}
    assert query.at["group"] == "named"
    assert len(query.step(ALL)) == 900  # as the trigger `once` wants it
    sized = Query(stream(broker, topics=topic, maxBytesPerTrigger="200000"))
    assert sized.reader.getDefaultReadLimit() == ReadMaxBytes(200000)
    assert 150 <= len(sized.step()) <= 200


def test_available_now_reads_what_was_there(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.publish_many(topic, [b"%d" % at for at in range(10)])
    query = Query(stream(broker, topics=topic, maxRecordsPerTrigger="4"))
    query.reader.prepareForTriggerAvailableNow()
    client.publish(topic, b"too late")
    steps = [query.step() for _ in range(4)]
    assert [len(step) for step in steps] == [4, 4, 2, 0]


def test_new_partitions_and_topics_are_picked_up(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    new_topic(name="fleet-a")
    client.publish("fleet-a", b"a0")
    query = Query(stream(broker, topics="fleet-*"))
    assert query.step() == [b"a0"]
    rest(broker, "POST", "/v1/topics/fleet-a/partitions", {"partitions": 2})
    with broker.client() as other:  # one that has not learned the number of partitions before
        other.publish("fleet-a", b"a1", partition=1)
    assert query.step() == [b"a1"]
    new_topic(name="fleet-b")
    client.publish("fleet-b", b"b0")
    assert query.step() == []  # it is entered in the checkpoint first
    assert query.at["topics"]["fleet-b"]["offsets"] == {"0": 0}
    assert query.step() == [b"b0"]


def test_idle_streams_wait_for_news(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    query = Query(stream(broker, topics=topic))
    began = time.monotonic()
    assert query.step() == []
    assert time.monotonic() - began >= 0.19


# -- losses ------------------------------------------------------------------------------------------------------------


def test_deleted_messages_are_noticed(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.publish_many(topic, [b"%d" % at for at in range(10)])
    query = Query(stream(broker, topics=topic, maxRecordsPerTrigger="2"))
    assert query.step() == [b"0", b"1"]
    planned = query.reader.latestOffset(query.at, ReadMaxRows(2))
    delete_before(broker, topic, 5)
    with pytest.raises(DataLost, match=rf"Offsets 2 to 4 of {topic}-0 were deleted before they were read"):
        query.step()
    # A batch that was planned before, and is read after a restart.
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        rows(query.reader, query.reader.partitions(query.at, planned))
    careless = Query(stream(broker, topics=topic, failOnDataLoss="false"), query.at)
    assert rows(careless.reader, careless.reader.partitions(query.at, planned)) == []
    assert careless.step() == [b"5", b"6", b"7", b"8", b"9"]


def test_a_topic_made_anew_is_another_topic(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.publish_many(topic, [b"old"] * 3)
    query = Query(stream(broker, topics=topic))
    assert query.step() == [b"old"] * 3
    make_anew(broker, topic)
    client.publish_many(topic, [b"new"] * 5)
    with pytest.raises(DataLost, match="deleted and made anew"):
        query.step()
    careless = Query(stream(broker, topics=topic, failOnDataLoss="false"), query.at)
    assert careless.step() == []
    assert careless.step() == [b"new"] * 5


def test_a_checkpoint_of_something_else_is_refused(broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic, other = new_topic(), new_topic()
    query = Query(stream(broker, topics=topic))
    with pytest.raises(InvalidConfig, match=rf"over {topic}, and this one is over {other}"):
        Query(stream(broker, topics=other), query.at).step()
    with pytest.raises(InvalidConfig, match="not written by a query over Penstock"):
        Query(stream(broker, topics=topic), {"orders": {"0": 5}}).step()
    with pytest.raises(InvalidConfig, match="of version 2"):
        Query(stream(broker, topics=topic), {**query.at, "version": 2}).step()
    both = stream(broker, topics=f"{topic},{other}")
    wider = Query(both, query.at)
    wider.step()
    assert set(wider.at["topics"]) == {topic, other}
    with pytest.raises(DataLost, match="no longer meant by the query"):
        Query(stream(broker, topics=topic), wider.at).step()


def test_a_damaged_batch_is_never_stepped_over_in_silence(
    broker: LocalBroker, data_dir: Path, client: Client, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    for word in (b"first", b"second", b"third"):
        client.publish(topic, word)
    (path,) = (data_dir / "logs" / topic / "0").glob("*.log")
    stored = bytearray(path.read_bytes())
    stored[stored.index(b"second")] ^= 1
    with path.open("r+b") as file:
        file.write(stored)
    with pytest.raises(DataLost, match="those from 1 on cannot be read"):
        batch_rows(broker, topics=topic)
    assert values(batch_rows(broker, topics=topic, failOnDataLoss="false")) == [b"first", b"third"]
    assert "Offsets 1 to 1" in caplog.text
