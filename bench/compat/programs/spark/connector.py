"""Spark's own Kafka connector against one node; run by PySpark's interpreter. One line of JSON for each check.

Topics exist already: ``<prefix>-orders`` and ``<prefix>-results`` with three partitions each, and ``<prefix>-ledger``
with one, which holds what an aborted and a committed transaction wrote.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

PARTITIONS = 3
FIRST, SECOND, THIRD = range(600), range(600, 1_000), range(1_000, 1_300)
BETWEEN_S = 0.5


class Connector:
    """The checks, in their order: each may count on what those before it wrote."""

    def __init__(self, spark: SparkSession, bootstrap: str, prefix: str, scratch: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._scratch = scratch
        self._between_ms = 0

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "batch write", self.write
        yield "batch read, keys and headers", self.read
        yield "batch read of given offsets", self.read_offsets
        yield "batch read by timestamps", self.read_timestamps
        yield "batch read by pattern, split up", self.read_pattern
        yield "batch read of committed results", self.read_committed
        yield "stream to Parquet, restarted", self.stream_to_files
        yield "stream from topic to topic, restarted", self.stream_to_topic

    # -- batches -------------------------------------------------------------------------------------------------------

    def write(self) -> str:
        self._write(FIRST)
        time.sleep(BETWEEN_S)
        self._between_ms = int(time.time() * 1000)
        time.sleep(BETWEEN_S)
        self._write(SECOND)
        return f"{len(FIRST) + len(SECOND)} rows"

    def read(self) -> str:
        rows = self._read(includeHeaders="true").collect()
        _expect({row.value.decode() for row in rows}, _orders(FIRST, SECOND))
        _expect(len(rows), len(FIRST) + len(SECOND))
        _expect({row.partition for row in rows}, set(range(PARTITIONS)))
        for row in rows:
            number = int(row.value.decode().removeprefix("order "))
            _expect(row.key.decode(), f"customer {number % 7}")
            _expect([(header.key, bytes(header.value)) for header in row.headers], [("number", str(number).encode())])
        return f"{len(rows)} rows"

    def read_offsets(self) -> str:
        topic = self._topic("orders")
        starts = json.dumps({topic: {"0": 10, "1": -2, "2": 20}})  # -2 is the earliest
        ends = json.dumps({topic: {"0": 15, "1": 5, "2": -1}})  # -1 is the latest
        rows = self._read(startingOffsets=starts, endingOffsets=ends).select("partition", "offset").collect()
        found = {each: sorted(row.offset for row in rows if row.partition == each) for each in range(PARTITIONS)}
        _expect(found[0], list(range(10, 15)))
        _expect(found[1], list(range(5)))
        _expect(found[2][0], 20)
        _expect(found[2], list(range(20, 20 + len(found[2]))))
        return f"{len(rows)} rows"

    def read_timestamps(self) -> str:
        moment = json.dumps({self._topic("orders"): {str(each): self._between_ms for each in range(PARTITIONS)}})
        early = self._read(startingOffsets="earliest", endingOffsetsByTimestamp=moment)
        late = self._read(startingOffsetsByTimestamp=moment, endingOffsets="latest")
        same = self._read(startingTimestamp=str(self._between_ms))
        _expect(_values(early), _orders(FIRST))
        _expect(_values(late), _orders(SECOND))
        _expect(_values(same), _orders(SECOND))
        return f"{early.count()} before, {late.count()} after"

    def read_pattern(self) -> str:
        frame = self._load({"subscribePattern": f"{self._prefix}-or.*", "minPartitions": "6"})
        _expect(_values(frame), _orders(FIRST, SECOND))
        tasks = frame.rdd.getNumPartitions()
        _expect(tasks, max(tasks, PARTITIONS + 1))
        return f"{tasks} tasks"

    def read_committed(self) -> str:
        topic = self._topic("ledger")
        committed = self._load({"subscribe": topic, "kafka.isolation.level": "read_committed"})
        everything = self._load({"subscribe": topic, "kafka.isolation.level": "read_uncommitted"})
        _expect(_values(committed), {f"committed {number}" for number in range(50)})
        _expect(everything.count(), 100)
        return f"{committed.count()} of {everything.count()} rows"

    # -- streams -------------------------------------------------------------------------------------------------------

    def stream_to_files(self) -> str:
        batches = self._stream_to_files()
        files = str(self._scratch / "files")
        _expect(_values(self._spark.read.parquet(files)), _orders(FIRST, SECOND))
        self._write(THIRD)
        self._stream_to_files()
        found = self._spark.read.parquet(files)
        _expect(_values(found), _orders(FIRST, SECOND, THIRD))
        _expect(found.count(), len(FIRST) + len(SECOND) + len(THIRD))
        return f"{found.count()} rows, {batches} batches before the restart"

    def _stream_to_files(self) -> int:
        query = (
            self._stream(maxOffsetsPerTrigger="400")
            .selectExpr("value", "partition", "offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._scratch / "files-checkpoint"))
            .trigger(availableNow=True)
            .start(str(self._scratch / "files"))
        )
        query.awaitTermination()
        return len([each for each in query.recentProgress if each.numInputRows])

    def stream_to_topic(self) -> str:
        self._stream_to_topic()
        seen = self._load({"subscribe": self._topic("results")}).count()
        _expect(seen, len(FIRST) + len(SECOND) + len(THIRD))
        more = range(THIRD.stop, THIRD.stop + 100)
        self._write(more)
        self._stream_to_topic()
        found = self._load({"subscribe": self._topic("results")})
        _expect(_values(found), {order.upper() for order in _orders(FIRST, SECOND, THIRD, more)})
        _expect(found.count(), seen + len(more))
        return f"{seen} rows, then {len(more)} more"

    def _stream_to_topic(self) -> None:
        query = (
            self._stream()
            .select("key", f.upper(f.col("value").cast("string")).alias("value"))
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("topic", self._topic("results"))
            .option("checkpointLocation", str(self._scratch / "topic-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    # -- shorthand -----------------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _write(self, numbers: range) -> None:
        number = f.col("id").cast("string")
        headers = f.array(f.struct(f.lit("number").alias("key"), number.cast("binary").alias("value")))
        self._spark.range(numbers.start, numbers.stop).select(
            f.concat(f.lit("customer "), (f.col("id") % 7).cast("string")).alias("key"),
            f.concat(f.lit("order "), number).alias("value"),
            headers.alias("headers"),
            (f.col("id") % PARTITIONS).cast("int").alias("partition"),
        ).write.format("kafka").option("kafka.bootstrap.servers", self._bootstrap).option(
            "includeHeaders", "true"
        ).option("topic", self._topic("orders")).save()

    def _load(self, options: dict[str, str]) -> DataFrame:
        reader = self._spark.read.format("kafka").option("kafka.bootstrap.servers", self._bootstrap)
        return reader.options(**options).load()

    def _read(self, **options: str) -> DataFrame:
        return self._load({"subscribe": self._topic("orders"), **options})

    def _stream(self, **options: str) -> DataFrame:
        reader = self._spark.readStream.format("kafka").option("kafka.bootstrap.servers", self._bootstrap)
        reader = reader.option("subscribe", self._topic("orders")).option("startingOffsets", "earliest")
        return reader.options(**options).load()


def _orders(*numbers: range) -> set[str]:
    return {f"order {number}" for some in numbers for number in some}


def _values(frame: DataFrame) -> set[str]:
    return {row.value for row in frame.select(f.col("value").cast("string").alias("value")).collect()}


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise ValueError(f"found {str(found)[:150]} instead of {str(wanted)[:150]}")


def session(jars: str, scratch: Path) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )


def report(name: str, began: float, *, passed: bool, detail: str) -> None:
    seconds = time.monotonic() - began
    print(json.dumps({"step": name, "passed": passed, "seconds": seconds, "detail": detail}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "jars", "prefix"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    options = parser.parse_args()
    began = time.monotonic()
    spark = session(options.jars, options.scratch)
    spark.sparkContext.setLogLevel("ERROR")
    report("start a session", began, passed=True, detail=f"Spark {spark.version}")
    for name, check in Connector(spark, options.bootstrap, options.prefix, options.scratch).checks():
        began = time.monotonic()
        try:
            report(name, began, passed=True, detail=check())
        except Exception as error:  # those after a failed one tell more
            report(name, began, passed=False, detail=str(error).strip()[:400])
    spark.stop()


if __name__ == "__main__":
    main()
