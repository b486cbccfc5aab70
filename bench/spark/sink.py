"""The sink: rows a second from memory into a topic, and from topic to topic, exactly once and not.

The first half runs in Spark, the second beside the node. Spark's own Kafka connector writes the same rows by the node's
Kafka door; it has no transactions, so it is at-least-once.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

SINK_ROWS = 400_000
SINK_PARTITIONS = 4
WARM_UP_WRITES = 2
WRITES = 3
WARM_UP_BATCHES = 6
KAFKA = "Spark's Kafka connector, at-least-once"

Figure = tuple[str, str, float, str]  # what was measured, of whom, how much, and its unit


def sink(spark: Any, options: argparse.Namespace) -> dict[str, float]:
    """Rows of 1,000 bytes that lie in Spark's memory, written in one batch."""
    rows = spark.range(SINK_ROWS, numPartitions=SINK_PARTITIONS).selectExpr(
        "cast(cast(id AS string) AS binary) AS key",
        "cast(rpad(cast(id AS string), 1000, sha2(cast(id AS string), 512)) AS binary) AS value",
    )
    rows = rows.persist()
    rows.write.format("noop").mode("append").save()
    seconds = []
    for _ in range(WARM_UP_WRITES + WRITES):
        began = time.monotonic()
        _writer(rows.write, options).mode("append").save()
        seconds.append(time.monotonic() - began)
    counted = seconds[WARM_UP_WRITES:]
    return {"rows": SINK_ROWS, "rows_per_second": SINK_ROWS / statistics.median(counted)}


def copy(spark: Any, options: argparse.Namespace) -> dict[str, float]:
    """From topic to topic in the steady state."""
    read = spark.readStream.format(options.format)
    if options.format == "kafka":
        read = read.option("kafka.bootstrap.servers", options.servers).option("subscribe", options.topic)
        read = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", options.trigger)
    else:
        read = read.option("servers", options.servers).option("topics", options.topic)
        read = read.option("maxRecordsPerTrigger", options.trigger)
    writer = _writer(read.load().select("key", "value").writeStream, options)
    writer = writer.option("checkpointLocation", tempfile.mkdtemp(prefix="penstock-bench-"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    counted = [each for each in query.recentProgress if each["numInputRows"]][WARM_UP_BATCHES:-1]
    written = sum(each["numInputRows"] for each in counted)
    seconds = sum(each["durationMs"]["triggerExecution"] for each in counted) / 1000
    return {"rows": written, "rows_per_second": written / seconds, "batches": len(counted)}


def _writer(writer: Any, options: argparse.Namespace) -> Any:
    writer = writer.format(options.format).option("topic", options.to)
    if options.format == "kafka":
        return writer.option("kafka.bootstrap.servers", options.servers)
    return writer.option("servers", options.servers).option("delivery", options.delivery)


class Filled(Protocol):
    """A node with a topic to copy from."""

    kafka: int

    @property
    def url(self) -> str: ...


def sink_figures(
    program: Callable[..., dict[str, float]], node: Filled, jars: Sequence[Path], topic: str, trigger: int
) -> Iterator[Figure]:
    """Every way to write, each in a Spark of its own. ``program`` runs that; without ``jars`` Kafka is left out."""
    ways = {f"penstock, {delivery}": _penstock(node, delivery) for delivery in ("exactly-once", "at-least-once")}
    if jars:
        door = f"127.0.0.1:{node.kafka}"
        ways[KAFKA] = ["--format", "kafka", "--servers", door, "--jars", ",".join(map(str, jars))]
    asked = ["--topic", topic, "--trigger", str(trigger)]
    for what, row in (("sink", "memory to sink"), ("copy", f"topic to topic, {trigger:,} rows a trigger")):
        for name, way in ways.items():
            told = program(what, *asked, *way, "--to", _new_topic(node))
            yield row, name, told["rows_per_second"], "rows/s"


def _penstock(node: Filled, delivery: str) -> list[str]:
    return ["--servers", node.url, "--delivery", delivery]


def _new_topic(node: Filled) -> str:
    """A topic of its own for each, so that nobody writes behind what another has written."""
    from penstock import Client

    name = f"sink-{uuid4().hex[:8]}"
    with Client(node.url) as client:
        client.create_topic(name, partitions=SINK_PARTITIONS)
    return name
