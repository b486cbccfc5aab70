"""Health: how much goes through topics, how far groups are behind and how long nodes take, at intervals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.api.groups import ListGroups
from penstock.api.health import DescribeFigures, MetricsView, TopicFigures
from penstock.errors import InvalidPipeline, PenstockError
from penstock.pipelines.definition import Trigger, TriggerKind
from penstock.pipelines.flow import triggered
from penstock.pipelines.places import beside, within
from penstock.pipelines.ready.kind import Option, ReadyPipeline, RunContext
from penstock.spark.connection import transport_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SCHEMA: Final = "at TIMESTAMP, node STRING, kind STRING, name STRING, measure STRING, value DOUBLE"

HealthRow = tuple[str, str, str, str, float]  # node, kind, name, measure, value


class HealthReport(ReadyPipeline):
    name = "health"
    help = "Throughput, lag and latency of a cluster at intervals, to a topic or to Parquet."
    options: ClassVar[Mapping[str, Option]] = {
        "to": Option("the topic that figures go to, or", default=""),
        "path": Option("the directory that they go to, as Parquet", default=""),
        "every": Option("how often", default="10 seconds"),
    }

    def start(self, options: Mapping[str, Any], context: RunContext) -> list[StreamingQuery]:
        """Look once with the trigger ``available-now``, else again and again."""
        if bool(options["to"]) == bool(options["path"]):
            raise InvalidPipeline("health needs `to: TOPIC` or `path: DIRECTORY` under `with`, one of them.")
        spark, definition = context.spark, context.definition
        target = {"topic": options["to"]} if options["to"] else {"path": beside(definition, options["path"])}
        sampler = Sampler(definition.servers, target)
        if context.trigger.kind is TriggerKind.ONCE:
            sampler.sample(spark)
            return []
        trigger = context.trigger
        if trigger.kind is not TriggerKind.EVERY:
            trigger = Trigger(TriggerKind.EVERY, options["every"])
        ticks = spark.readStream.format("rate").load().writeStream.queryName(self.name).foreachBatch(sampler)
        ticks = ticks.option("checkpointLocation", within(context.checkpoint, self.name))
        return [triggered(ticks, trigger).start()]


class Sampler:
    """Asks nodes for their figures and writes them down."""

    def __init__(self, servers: str, target: Mapping[str, str]) -> None:
        self._servers = [server.strip() for server in servers.split(",")]
        self._target = dict(target)
        self._before: dict[str, MetricsView] = {}

    def __call__(self, ticks: DataFrame, _batch: int) -> None:
        self.sample(ticks.sparkSession)

    def sample(self, spark: SparkSession) -> None:
        from pyspark.sql import functions as sql

        rows = [row for server in self._servers for row in self._of_node(server)]
        rows += list(self._of_groups())
        at = sql.timestamp_millis(sql.lit(time.time_ns() // 1_000_000)).alias("at")
        figures = spark.createDataFrame(rows, _SCHEMA.split(", ", 1)[1]).select(at, "*").coalesce(1)
        if "path" in self._target:
            dated = figures.withColumn("date", sql.to_date("at"))
            dated.write.mode("append").partitionBy("date").parquet(self._target["path"])
            return
        written = figures.select(sql.col("name").alias("key"), sql.to_json(sql.struct("*")).alias("value"))
        options = {"servers": ",".join(self._servers), "topic": self._target["topic"]}
        written.write.format("penstock").options(**options).mode("append").save()

    def _of_node(self, server: str) -> Iterator[HealthRow]:
        """A node that does not answer has one figure: that it does not."""
        portal, transport = transport_to((server,), timeout_s=5.0)
        try:
            found = portal.call(transport.call(DescribeFigures()))
        except PenstockError:
            yield server, "node", server, "up", 0.0
            return
        yield server, "node", server, "up", 1.0
        for name in ("log_append_latency", "log_sync_latency", "produce_latency"):
            for part in ("p50_ms", "p99_ms"):
                figure = getattr(getattr(found, name), part)
                if figure is not None:
                    yield server, "node", server, f"{name}_{part}", float(figure)
        before = self._before.get(server)
        self._before[server] = found
        for topic in found.topics:
            for measure in ("messages", "size_bytes"):
                yield server, "topic", topic.topic, measure, float(getattr(topic, measure))
            for measure in ("messages_produced", "bytes_produced", "messages_consumed", "bytes_consumed"):
                rate = _rate(before, found, topic, measure)
                if rate is not None:
                    yield server, "topic", topic.topic, f"{measure}_per_second", rate

    def _of_groups(self) -> Iterator[HealthRow]:
        portal, transport = transport_to(tuple(self._servers), timeout_s=5.0)
        try:
            found = portal.call(transport.call(ListGroups()))
        except PenstockError:
            return
        for group in found.groups:
            yield "", "group", group.group, "lag", float(group.lag)
            yield "", "group", group.group, "members", float(group.members)


def _rate(before: MetricsView | None, found: MetricsView, topic: TopicFigures, measure: str) -> float | None:
    """How much a second since the last look; None at the first one, and when the node began anew meanwhile."""
    if before is None or found.uptime_ms <= before.uptime_ms:
        return None
    last = next((each for each in before.topics if each.topic == topic.topic), None)
    if last is None:
        return None
    seconds = float(found.time_ms - before.time_ms) / 1000
    return float(max(getattr(topic, measure) - getattr(last, measure), 0)) / seconds
