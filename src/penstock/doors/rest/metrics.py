"""Prometheus metrics, made from the broker's plain integers when somebody asks for them.

Nothing here runs on the hot path. Rows for each partition are bounded: a node with more partitions than
``metrics.partition_labels_max`` shows sums for each topic instead, without the label ``partition``.
Names and meanings: docs/reference/metrics.md.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from starlette.types import Scope

from penstock import __version__
from penstock.api.health import TopicFigures
from penstock.doors.rest.cluster_metrics import collect_cluster, lag_of
from penstock.doors.rest.door import Door
from penstock.doors.rest.exchange import Reply, header_of
from penstock.doors.rest.pipeline_metrics import collect_pipelines
from penstock.doors.rest.queue_metrics import Standings, collect_queues, standings_of
from penstock.doors.rest.schedule_metrics import collect_schedules
from penstock.doors.rest.scrub_metrics import collect_scrub
from penstock.errors import CoordinatorLoading
from penstock.features.groups.report import progress_of
from penstock.features.transactions.records import Reason
from penstock.operations.health import topic_figures
from penstock.partitions.partition import Partition
from penstock.partitions.stats import Histogram, TransactionOutcomes

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Lags = list[tuple[list[str], int]]

_PER_PARTITION: tuple[tuple[str, str, Callable[[Partition], int]], ...] = (
    ("penstock_log_size_bytes", "Bytes in the log's segments.", lambda at: at.log.size_bytes),
    ("penstock_log_segments", "Segments of the log.", lambda at: len(at.log.segments)),
    ("penstock_log_corrupt_bytes", "Bytes that fail their checksum.", lambda at: at.log.corrupt_bytes),
    ("penstock_log_lost_offsets", "Offsets that no replica has any more.", lambda at: at.log.lost_offsets),
    ("penstock_log_failed", "Whether it takes no writes until a restart.", lambda at: int(at.log.failure is not None)),
    ("penstock_partition_leader", "Whether this node leads the partition.", lambda at: int(at.is_leader)),
    ("penstock_replication_lag_messages", "How far the last of its followers is behind, at the leader.", lag_of),
)  # fmt: skip

# Offsets of different partitions have no meaningful sum, so these are shown by partition or not at all.
_PER_PARTITION_ONLY: tuple[tuple[str, str, Callable[[Partition], int]], ...] = (
    ("penstock_log_start_offset", "The first offset that can be read.", lambda at: at.log.start_offset),
    ("penstock_log_end_offset", "The offset that the next record will get.", lambda at: at.log.end_offset),
    ("penstock_high_watermark", "Everything before this offset is committed.", lambda at: at.high_watermark),
)

_PER_TOPIC: tuple[tuple[str, str, Callable[[TopicFigures], int]], ...] = (
    ("penstock_messages_produced", "Messages appended.", lambda at: at.messages_produced),
    ("penstock_bytes_produced", "Bytes of the batches appended.", lambda at: at.bytes_produced),
    ("penstock_messages_consumed", "Messages handed to readers.", lambda at: at.messages_consumed),
    ("penstock_bytes_consumed", "Bytes handed to readers.", lambda at: at.bytes_consumed),
)


async def metrics(door: Door, scope: Scope) -> Reply:
    """Metrics in Prometheus' text format, or OpenMetrics where that is asked for."""
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.process_collector import ProcessCollector
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    standings = await standings_of(door.broker, door.config.metrics.partition_labels_max)
    registry.register(NodeCollector(door, await _lags(door), standings))
    encode, content_type = choose_encoder(header_of(scope, b"accept"))
    return Reply(200, encode(registry), content_type, [])


async def _lags(door: Door) -> Lags:
    """How far the groups that are coordinated here are behind, as many rows as the door's settings allow."""
    try:
        groups = door.broker.groups.all_groups()
    except CoordinatorLoading:
        return []
    rows = [
        ([group.id, row.topic, str(row.partition)], row.lag)
        for group, progress in zip(groups, await progress_of(door.broker.ports, groups), strict=True)
        for row in progress
        if row.lag is not None
    ]
    return rows[: door.config.metrics.partition_labels_max]


class NodeCollector:
    """Everything one node can say in numbers."""

    def __init__(self, door: Door, lags: Lags, standings: Standings) -> None:
        self._door = door
        self._lags = lags
        self._standings = standings

    def collect(self) -> Iterable[Metric]:
        yield from self._node()
        yield from self._logs()
        yield from self._topics()
        yield from collect_cluster(self._door.broker, self._door.leaderships)
        yield from self._groups()
        yield from collect_queues(self._door.broker, self._standings, self._door.config.metrics.partition_labels_max)
        yield from collect_schedules(self._door.broker)
        yield from collect_pipelines(self._door.broker)
        yield from self._transactions()
        yield from collect_scrub(self._door.broker.scrub.progress)
        stats = self._door.broker.stats
        yield _histogram(
            "penstock_rebalance_duration_seconds",
            "From the first reason for a round of a group until every member has its partitions.",
            self._door.broker.groups.round_duration,
        )
        yield _histogram("penstock_log_append_latency_seconds", "Writing a batch to its log.", stats.append_latency)
        yield _histogram("penstock_log_sync_latency_seconds", "Making a log durable.", stats.sync_latency)
        yield _histogram("penstock_produce_latency_seconds", "From request to committed.", stats.produce_latency)

    def _node(self) -> Iterable[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        door, broker = self._door, self._door.broker
        build = GaugeMetricFamily("penstock_build_info", "The version that runs.", labels=["version", "python"])
        build.add_metric([__version__, platform.python_version()], 1)
        yield build
        yield GaugeMetricFamily("penstock_topics", "Topics of the cluster.", len(broker.metadata.topics))
        yield GaugeMetricFamily("penstock_partitions", "Partitions on this node.", len(broker.replicas))
        total_bytes, free_bytes = broker.disk_usage()
        yield GaugeMetricFamily("penstock_disk_total_bytes", "Size of the disk that holds the data.", total_bytes)
        yield GaugeMetricFamily("penstock_disk_free_bytes", "Space left on it.", free_bytes)
        requests = CounterMetricFamily("penstock_http_requests", "HTTP requests.", labels=["operation", "status"])
        for (operation, status), count in list(door.requests.items()):
            requests.add_metric([operation, str(status)], count)
        yield requests
        failures = CounterMetricFamily(
            "penstock_background_failures", "Background tasks that met a bug and began anew.", labels=["task"]
        )
        for task, count in list(broker.supervision.failures.items()):
            failures.add_metric([task], count)
        yield failures
        yield from self._access()

    def _access(self) -> Iterable[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily

        broker = self._door.broker
        failures = CounterMetricFamily(
            "penstock_authentication_failures", "Logins that were refused.", labels=["door", "reason"]
        )
        for (door, reason), count in list(broker.authenticator.failures.items()):
            failures.add_metric([door, reason], count)
        yield failures
        yield CounterMetricFamily(
            "penstock_authorization_denied", "Requests refused for want of a right.", broker.authorizer.denied
        )
        yield CounterMetricFamily(
            "penstock_audit_dropped", "Audit events that were not written.", broker.audit_topic.dropped
        )
        yield from self._quotas()

    def _quotas(self) -> Iterable[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily

        quotas, labels = self._door.broker.quotas, ["door", "kind"]
        throttled = CounterMetricFamily(
            "penstock_quota_throttled", "Pauses and refusals of clients over a quota.", labels=labels
        )
        seconds = CounterMetricFamily(
            "penstock_quota_throttled_seconds", "How long such clients had to wait.", labels=labels
        )
        for (door, kind), count in list(quotas.throttled.items()):
            throttled.add_metric([door, kind], count)
            seconds.add_metric([door, kind], quotas.throttled_s[door, kind])
        yield throttled
        yield seconds

    def _logs(self) -> Iterable[Metric]:
        partitions = list(self._door.broker.replicas)
        if len(partitions) > self._door.config.metrics.partition_labels_max:
            for name, text, value in _PER_PARTITION:
                yield _gauge(name, text, ["topic"], _by_topic(partitions, value))
            return
        for name, text, value in (*_PER_PARTITION, *_PER_PARTITION_ONLY):
            rows = [([at.id.topic, str(at.id.partition)], value(at)) for at in partitions]
            yield _gauge(name, text, ["topic", "partition"], rows)

    def _topics(self) -> Iterable[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily

        topics = topic_figures(self._door.broker.replicas)
        for name, text, value in _PER_TOPIC:
            family = CounterMetricFamily(name, text, labels=["topic"])
            for figures in topics:
                family.add_metric([figures.topic], value(figures))
            yield family
        errors = CounterMetricFamily("penstock_produce_errors", "Appends refused.", labels=["topic", "code"])
        for figures in topics:
            for code, count in figures.produce_errors.items():
                errors.add_metric([figures.topic, code], count)
        yield errors

    def _groups(self) -> Iterable[Metric]:
        broker = self._door.broker
        try:
            groups = broker.groups.all_groups()
        except CoordinatorLoading:
            return  # some are not known yet, and half of them would look like the others had gone
        yield _gauge("penstock_groups", "Consumer groups coordinated here.", [], [([], len(groups))])
        yield _gauge(
            "penstock_consumer_lag",
            "Messages between a group's committed offset and the end of the partition.",
            ["group", "topic", "partition"],
            self._lags,
        )

    def _transactions(self) -> Iterable[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily

        broker = self._door.broker
        stats = broker.stats.transactions
        yield CounterMetricFamily("penstock_transactions_committed", "Transactions committed.", stats.committed)
        aborted = CounterMetricFamily("penstock_transactions_aborted", "Transactions aborted.", labels=["reason"])
        for reason, count in stats.aborted.items():
            aborted.add_metric([reason], count)
        yield aborted
        yield _histogram("penstock_transaction_commit_seconds", "From commit to complete.", stats.commit_latency)
        yield from self._series_decided(stats.series)
        try:
            kafka = sum(each.is_open for each in broker.transactions.all_transactions())
            joint = broker.joint.open_count()
            series = broker.joint.open_series_count()
        except CoordinatorLoading:
            return
        yield _gauge("penstock_series_open", "Series whose last transaction is not complete.", [], [([], series)])
        rows = [(["kafka"], kafka), (["joint"], joint)]
        yield _gauge("penstock_open_transactions", "Transactions that are not complete.", ["kind"], rows)

    def _series_decided(self, decided: TransactionOutcomes) -> Iterable[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily

        yield CounterMetricFamily("penstock_series_committed", "Numbers of series committed.", decided.committed)
        aborted = CounterMetricFamily("penstock_series_aborted", "Transactions of series aborted.", labels=["reason"])
        for reason in Reason:
            aborted.add_metric([reason.value], decided.aborted.get(reason.value, 0))
        yield aborted


def _by_topic(partitions: list[Partition], value: Callable[[Partition], int]) -> list[tuple[list[str], int]]:
    sums: dict[str, int] = {}
    for partition in partitions:
        sums[partition.id.topic] = sums.get(partition.id.topic, 0) + value(partition)
    return [([topic], total) for topic, total in sums.items()]


def _gauge(name: str, text: str, labels: list[str], rows: list[tuple[list[str], int]]) -> Metric:
    from prometheus_client.metrics_core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=labels)
    for values, amount in rows:
        family.add_metric(values, amount)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    from prometheus_client.metrics_core import HistogramMetricFamily

    return HistogramMetricFamily(name, text, buckets=histogram.cumulative(), sum_value=histogram.sum)
