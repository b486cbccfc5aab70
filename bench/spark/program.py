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

WARM_UP_ROWS = 3  # micro-batches that do not count
FLOOR_BATCHES = 60


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
    parser.add_argument("what", choices=["stream", "floor", "bare", "memory", "sink", "copy"])
    parser.add_argument("--format", choices=["penstock", "kafka"], default="penstock")
    parser.add_argument("--servers", default="", help="URLs of nodes, or of their Kafka doors")
    parser.add_argument("--topic", default="")
    parser.add_argument("--trigger", type=int, default=200_000)
    parser.add_argument("--jars", default="")
    parser.add_argument("--delivery", choices=["exactly-once", "at-least-once"], default="exactly-once")
    return parser.parse_args()


def main() -> None:
    options = parse()
    conf: dict[str, object] = {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}
    if options.jars:
        conf["spark.jars"] = options.jars
    spark = session("bench", "local[2]", **conf)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        programs = {"stream": stream, "floor": floor, "bare": bare, "memory": memory, "sink": sink, "copy": copy}
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
    progress = _run(_source(spark.readStream, options, options.trigger).load(), is_endless=False)
    counted = [each for each in progress if each["numInputRows"]][WARM_UP_ROWS:-1]  # the last one is not a full one
    rows = sum(each["numInputRows"] for each in counted)
    seconds = sum(each["durationMs"]["triggerExecution"] for each in counted) / 1000
    return {"rows": rows, "rows_per_second": rows / seconds, "batches": len(counted)}


def floor(spark: Any, options: argparse.Namespace) -> dict[str, float]:
    """How long a micro-batch of one row takes."""
    return _floor(_source(spark.readStream, options, 1).load())


def bare(spark: Any, _options: argparse.Namespace) -> dict[str, float]:
    """The same for a source that does nothing."""
    spark.dataSource.register(BareSource)
    return _floor(spark.readStream.format("bare").load())


def _floor(rows: Any) -> dict[str, float]:
    progress = _run(rows, is_endless=True)
    counted = [each["durationMs"]["triggerExecution"] for each in progress if each["numInputRows"]][10:]
    return {"milliseconds": statistics.median(counted), "batches": len(counted)}


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
    began = time.monotonic()
    table = _source(spark.read, options, None).load()
    table.write.format("noop").mode("append").save()
    seconds = time.monotonic() - began
    is_over.set()
    watcher.join()
    return {"megabytes": peak / 1e6, "seconds": seconds}


if __name__ == "__main__":
    main()
