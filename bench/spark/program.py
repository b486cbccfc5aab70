"""One Spark session that reads a topic in one way, and tells in a line of JSON how fast; run by the bench."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from bench.spark.sink import copy, sink
from penstock.spark import session
from penstock.spark.reading.cluster import Cluster
from penstock.spark.reading.options import SourceOptions

WARM_UP_BATCHES = 2
FLOOR_BATCHES = 40
FLOOR_WARM_UP_BATCHES = 10
FLOOR_TURNS = 2


class BareSource(DataSource):
    """A Python source that does nothing but count: what any other one takes on top is its own."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802
        return BareReader()


class BareReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self._at = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802
        return {"at": start["at"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:  # noqa: ARG002
        return [InputPartition(end["at"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        yield pa.RecordBatch.from_arrays([pa.array([b"x"], type=pa.binary())], names=["value"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["stream", "floor", "memory", "sink", "copy"])
    parser.add_argument("--format", choices=["penstock", "kafka"], default="penstock")
    parser.add_argument("--servers", default="", help="URLs of nodes, or of their Kafka doors")
    parser.add_argument("--topic", default="")
    parser.add_argument("--trigger", type=int, default=200_000)
    parser.add_argument("--share", type=float, default=1.0, help="of the topic that is read")
    parser.add_argument("--jars", default="")
    parser.add_argument("--delivery", choices=["exactly-once", "at-least-once"], default="exactly-once")
    parser.add_argument("--to", default="", help="the topic to write to")
    return parser.parse_args()


def main() -> None:
    options = parse()
    conf: dict[str, object] = {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}
    if options.jars:
        conf["spark.jars"] = options.jars
    spark = session("bench", "local[2]", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        programs = {"stream": stream, "floor": floor, "memory": memory, "sink": sink, "copy": copy}
        figures = programs[options.what](spark, options)
    finally:
        spark.stop()
    print(json.dumps(figures), flush=True)


def _source(reader: Any, options: argparse.Namespace, limit: int | None) -> Any:
    if options.format == "kafka":
        reader = reader.format("kafka").option("kafka.bootstrap.servers", options.servers)
        reader = reader.option("subscribe", options.topic).option("startingOffsets", "earliest")
        return reader if limit is None else reader.option("maxOffsetsPerTrigger", limit)
    reader = reader.format("penstock").option("servers", options.servers).option("topics", options.topic)
    return reader if limit is None else reader.option("maxRecordsPerTrigger", limit)


def stream(spark: Any, options: argparse.Namespace) -> dict[str, float]:
    """Rows a second in the steady state, all columns, to nowhere."""
    rows = _source(spark.readStream, options, options.trigger).load()
    _run(rows, is_endless=False)  # once for nothing: the JVM compiles what it runs often, and that takes seconds
    progress = _run(rows, is_endless=False)
    counted = [each for each in progress if each["numInputRows"]][WARM_UP_BATCHES:-1]  # the last one is not a full one
    count = sum(each["numInputRows"] for each in counted)
    seconds = sum(each["durationMs"]["triggerExecution"] for each in counted) / 1000
    return {"rows": count, "rows_per_second": count / seconds, "batches": len(counted)}


def floor(spark: Any, options: argparse.Namespace) -> dict[str, float]:
    """How long a micro-batch of one row takes, in milliseconds; by turns with a source that does nothing."""
    spark.dataSource.register(BareSource)
    sources = {
        "a Python source that does nothing": spark.readStream.format("bare").load(),
        "penstock": _source(spark.readStream, options, 1).load(),
    }
    taken: dict[str, list[float]] = {name: [] for name in sources}
    for turn in range(FLOOR_TURNS + 1):
        for name, rows in sources.items():
            progress = _run(rows, is_endless=True)
            if turn:  # in the first one the JVM warms up
                counted = [each for each in progress if each["numInputRows"]][FLOOR_WARM_UP_BATCHES:]
                taken[name] += [each["durationMs"]["triggerExecution"] for each in counted]
    return {name: statistics.median(milliseconds) for name, milliseconds in taken.items()}


def _run(rows: Any, *, is_endless: bool) -> list[Any]:
    writer = rows.writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp(prefix="penstock-bench-"))
    if not is_endless:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return list(query.recentProgress)
    query = writer.start()
    while len(query.recentProgress) < FLOOR_BATCHES and query.exception() is None:
        time.sleep(0.1)
    if (error := query.exception()) is not None:
        raise error
    query.stop()
    return list(query.recentProgress)


def memory(spark: Any, options: argparse.Namespace) -> dict[str, float]:
    """The most that a Python worker holds while it reads all of a topic."""
    peak = 0
    is_over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                try:
                    if any("pyspark.daemon" in part for part in process.cmdline()):
                        peak = max(peak, process.memory_info().rss)
                except psutil.Error:
                    continue

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    ends = _ends(options)
    began = time.monotonic()
    reader = _source(spark.read, options, None).option("endingOffsets", json.dumps({options.topic: ends}))
    reader.load().write.format("noop").mode("append").save()
    seconds = time.monotonic() - began
    is_over.set()
    watcher.join()
    return {"megabytes": peak / 1e6, "seconds": seconds, "rows": sum(ends.values())}


def _ends(options: argparse.Namespace) -> dict[int, int]:
    """Up to where a share of each partition goes."""
    asked = SourceOptions.of({"servers": options.servers, "topics": options.topic}, is_streaming=False)
    partitions = Cluster(asked).reaches()[options.topic].partitions
    return {index: int(reach.end * options.share) for index, reach in partitions.items()}


if __name__ == "__main__":
    main()
