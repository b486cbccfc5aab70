"""The sink: rows a second from memory into a topic, and from topic to topic, exactly once and not."""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any
from uuid import uuid4

SINK_ROWS = 400_000
WARM_UP_BATCHES = 3


def sink(spark: Any, options: argparse.Namespace) -> dict[str, float]:
    """Rows of 1,000 bytes that lie in Spark's memory, written in one batch; the best of three."""
    rows = spark.range(SINK_ROWS, numPartitions=4).selectExpr(
        "cast(id AS string) AS key",
        "cast(rpad(cast(id AS string), 1000, sha2(cast(id AS string), 512)) AS binary) AS value",
    )
    rows = rows.persist()
    rows.write.format("noop").mode("append").save()
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        writer = rows.write.format("penstock").option("servers", options.servers).option("delivery", options.delivery)
        writer.mode("append").save(_topic(options))
        seconds.append(time.monotonic() - began)
    return {"rows": SINK_ROWS, "rows_per_second": SINK_ROWS / min(seconds)}


def copy(spark: Any, options: argparse.Namespace) -> dict[str, float]:
    """From topic to topic in the steady state, each micro-batch exactly once."""
    read = spark.readStream.format("penstock").option("servers", options.servers).option("topics", options.topic)
    rows = read.option("maxRecordsPerTrigger", options.trigger).load().select("key", "value")
    writer = rows.writeStream.format("penstock").option("servers", options.servers)
    writer = writer.option("delivery", options.delivery).option("topic", _topic(options))
    writer = writer.option("checkpointLocation", tempfile.mkdtemp(prefix="penstock-bench-"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    counted = [each for each in query.recentProgress if each["numInputRows"]][WARM_UP_BATCHES:-1]
    written = sum(each["numInputRows"] for each in counted)
    seconds = sum(each["durationMs"]["triggerExecution"] for each in counted) / 1000
    return {"rows": written, "rows_per_second": written / seconds, "batches": len(counted)}


def _topic(options: argparse.Namespace) -> str:
    """A topic of its own, with as many partitions as the first."""
    from penstock import Client

    name = f"sink-{uuid4().hex[:8]}"
    with Client(options.servers) as client:
        client.create_topic(name, partitions=4)
    return name
