"""The source in a real Spark session, against a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.node import Node

from penstock.client.generated.sync import Client
from penstock.client.values import Draft
from penstock.testing.local import LocalBroker

NewTopic = Callable[..., str]

# Spark starts a JVM and a handful of Python processes before it does anything: minutes on a machine that is busy.
pytestmark = pytest.mark.timeout(900)
_PATIENCE_S = 300.0
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def test_a_topic_is_a_table(spark: Any, broker: LocalBroker, client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    for partition in (0, 1):
        values = [b'{"id": %d, "city": "%s"}' % (at, b"Rome" if at % 4 else b"Oslo") for at in range(2000)]
        client.publish_many(topic, values, partition=partition)
    table = spark.read.format("penstock").option("servers", broker.url)
    raw = table.option("includeHeaders", "true").load(topic)
    assert raw.columns == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    found = raw.selectExpr("count(*)", "count(distinct partition, offset)", "max(offset)", "max(topic)").first()
    assert tuple(found) == (4000, 4000, 1999, topic)
    parsed = table.option("schema", "id INT, city STRING").option("minPartitions", 4).load(topic)
    assert parsed.rdd.getNumPartitions() == 4
    counted = parsed.groupBy("value.city").agg({"value.id": "sum"}).collect()
    assert {row[0]: row[1] for row in counted} == {"Oslo": 998_000, "Rome": 3_000_000}


@pytest.mark.parametrize("is_on", ["true", "false"])
def test_filters_are_pushed_down_where_the_session_lets_them(
    spark: Any, broker: LocalBroker, client: Client, new_topic: NewTopic, is_on: str
) -> None:
    topic = new_topic(3, retention_ms=-1)  # messages of long ago
    for partition in range(3):
        drafts = [Draft(b"%d" % at, timestamp=1000.0 + at) for at in range(100)]
        client.publish_many(topic, drafts, partition=partition)
    spark.conf.set(_PUSHDOWN, is_on)
    try:
        rows = spark.read.format("penstock").option("servers", broker.url).load(topic)
        some = rows.where("partition = 1 AND offset >= 90 AND timestamp >= timestamp_seconds(1095)")
        assert sorted(int(row.value) for row in some.select("value").collect()) == [95, 96, 97, 98, 99]
        plan = some._jdf.queryExecution().executedPlan().toString()
        looked_at = plan.split("Filter", 1)[1].split("\n", 1)[0]
        assert "timestamp" in looked_at, "what was pushed down for less reading is looked at again"
        assert ("offset" in looked_at) == (is_on == "false"), plan
        named = rows.where("offset IN (3, 7) AND partition <> 0")
        assert sorted((row.partition, row.offset) for row in named.collect()) == [(1, 3), (1, 7), (2, 3), (2, 7)]
    finally:
        spark.conf.set(_PUSHDOWN, "true")


def test_a_schema_names_the_columns_that_are_wanted(
    spark: Any, broker: LocalBroker, client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(40)
    for partition in range(40):
        client.publish(topic, b"x", partition=partition)
    table = spark.read.format("penstock").option("servers", broker.url)
    rows = table.schema("partition INT").load(topic)
    assert (rows.columns, rows.count()) == (["partition"], 40)
    assert rows.rdd.getNumPartitions() == 2, "small partitions share tasks"


def test_mistakes_are_told_in_words(spark: Any, broker: LocalBroker, new_topic: NewTopic) -> None:
    topic = new_topic()
    table = spark.read.format("penstock").option("servers", broker.url)
    for options, told in (
        ({"topics": topic, "startOffsets": "latest"}, "did you mean 'startingOffsets'?"),
        ({"topics": topic, "group": "g"}, "Option 'group' is for streams"),
        ({"topics": "nowhere"}, "There is no topic nowhere."),
    ):
        with pytest.raises(Exception, match=_words(told)):
            table.options(**options).load().count()
        table = spark.read.format("penstock").option("servers", broker.url)
    with pytest.raises(Exception, match="leave out"):
        table.schema("a INT").load(topic).count()


def _words(text: str) -> str:
    return text.replace("?", r"\?").replace(".", r"\.")


def test_a_stream_begins_again_at_its_checkpoint(
    spark: Any, broker: LocalBroker, client: Client, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)

    def run() -> Any:
        rows = spark.readStream.format("penstock").option("servers", broker.url).option("maxRecordsPerTrigger", 700)
        writer = rows.load(topic).writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "mark")).trigger(availableNow=True).start()
        assert query.awaitTermination(int(_PATIENCE_S))
        return query

    client.publish_many(topic, [b"%d" % at for at in range(1000)], partition=0)
    first = run()
    assert len([progress for progress in first.recentProgress if progress["numInputRows"]]) == 2
    client.publish_many(topic, [b"%d" % at for at in range(1000, 1500)], partition=1)
    run()
    run()  # nothing is left, and nothing comes twice
    found = spark.read.parquet(str(tmp_path / "out")).selectExpr("cast(value AS string) AS v")
    assert sorted(int(row.v) for row in found.collect()) == list(range(1500))


def test_a_broker_that_restarts_is_waited_for(spark: Any, tmp_path: Path) -> None:
    node = Node(tmp_path / "node", storage__fsync="none")
    node.start()
    seen: list[int] = []
    sent = 0
    query = None
    try:
        with Client(node.http_url) as client:
            client.create_topic("t", partitions=2)
            rows = spark.readStream.format("penstock").options(servers=node.http_url, topics="t", timeout="90").load()
            keep = rows.selectExpr("cast(cast(value AS string) AS int) AS n").writeStream.foreachBatch(
                lambda batch, _: seen.extend(row.n for row in batch.collect())
            )
            query = keep.option("checkpointLocation", str(tmp_path / "mark")).start()
            for at in range(3):
                for partition in (0, 1):
                    client.publish_many("t", [b"%d" % (sent + number) for number in range(500)], partition=partition)
                    sent += 500
                if at == 0:
                    _wait(lambda: bool(seen), query)
                if at == 1:
                    node.kill()
                    time.sleep(0.5)
                    node.start()
            _wait(lambda: len(seen) >= sent, query)
    finally:
        if query is not None:
            query.stop()
        node.kill()
    assert sorted(seen) == list(range(sent))


def _wait(is_so: Callable[[], bool], query: Any) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert query.exception() is None, str(query.exception())
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.05)


def test_a_machine_without_java_uses_the_packaged_one() -> None:
    program = (
        "import os\n"
        "from penstock.spark import session\n"
        "spark = session('t', 'local[1]', testing=True)\n"
        "assert 'penstock' in os.environ['JAVA_HOME']\n"
        "print('sum:', spark.range(5).selectExpr('sum(id)').first()[0])\n"
    )
    tools = _path_without_java()
    environment = {name: text for name, text in os.environ.items() if name not in {"JAVA_HOME", "SPARK_HOME"}}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PATH": tools},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert "sum: 10" in done.stdout, done.stderr[-2000:]


def _path_without_java() -> str:
    """Directories with the commands that Spark's scripts use, and no Java."""
    import shutil
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="penstock-path-"))
    for name in (
        "bash",
        "sh",
        "env",
        "dirname",
        "basename",
        "cat",
        "ls",
        "uname",
        "id",
        "ps",
        "readlink",
        "tr",
        "nice",
    ):
        found = shutil.which(name)
        if found is not None:
            (directory / name).symlink_to(found)
    return str(directory)
