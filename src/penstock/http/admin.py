"""The node and its cluster in numbers, as JSON: what the status page and people with curl look at."""

from __future__ import annotations

import msgspec

from penstock.broker.stats import LATENCY_BOUNDS_SECONDS, Histogram
from penstock.cluster.records import NO_LEADER
from penstock.http.door import Door
from penstock.http.exchange import Call
from penstock.http.figures import TopicFigures, topic_figures
from penstock.model import is_internal


class EndpointView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a door of a node can be reached."""

    door: str
    host: str
    port: int


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    epoch: int
    rack: str | None
    endpoints: list[EndpointView]


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """Who is in the cluster, and how much it holds."""

    cluster_id: str
    controller: int | None
    nodes: list[NodeView]
    topics: int
    partitions: int
    partitions_without_leader: int
    metadata_version: int


class LatencyView(msgspec.Struct, frozen=True, kw_only=True):
    """Durations since the node started; percentiles are upper bounds of the bucket they fall in, null with no data."""

    count: int
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None


class MetricsView(msgspec.Struct, frozen=True, kw_only=True):
    """What went through this node since it started, and what lies on it."""

    time_ms: int
    uptime_ms: int
    topics: list[TopicFigures]
    log_append_latency: LatencyView
    log_sync_latency: LatencyView
    produce_latency: LatencyView


async def cluster(door: Door, _call: Call[None, None]) -> ClusterView:
    """The cluster as this node knows it."""
    metadata = door.broker.metadata
    assignments = [assigned for topic in metadata.topics.values() for assigned in topic.partitions]
    return ClusterView(
        cluster_id=metadata.cluster_id,
        controller=door.broker.quorum.leader_id,
        nodes=[
            NodeView(
                node_id=node.node_id,
                epoch=node.epoch,
                rack=node.rack,
                endpoints=[EndpointView(door=at.door, host=at.host, port=at.port) for at in node.endpoints],
            )
            for node in metadata.nodes.values()
        ],
        topics=len(metadata.topics),
        partitions=len(assignments),
        partitions_without_leader=sum(assigned.leader == NO_LEADER for assigned in assignments),
        metadata_version=metadata.version,
    )


async def metrics(door: Door, _call: Call[None, None]) -> MetricsView:
    """The figures of /metrics as JSON, by topic."""
    broker = door.broker
    now_ms = broker.clock.now_ms()
    return MetricsView(
        time_ms=now_ms,
        uptime_ms=max(now_ms - door.started_at_ms, 0),
        topics=[figures for figures in topic_figures(broker) if not is_internal(figures.topic)],
        log_append_latency=_latency(broker.stats.append_latency),
        log_sync_latency=_latency(broker.stats.sync_latency),
        produce_latency=_latency(broker.stats.produce_latency),
    )


def _latency(histogram: Histogram) -> LatencyView:
    count = sum(histogram.counts)
    return LatencyView(
        count=count,
        mean_ms=round(histogram.sum / count * 1000, 3) if count else None,
        p50_ms=_percentile_ms(histogram, 0.5),
        p99_ms=_percentile_ms(histogram, 0.99),
    )


def _percentile_ms(histogram: Histogram, share: float) -> float | None:
    wanted = sum(histogram.counts) * share
    seen = 0
    for bound, count in zip(LATENCY_BOUNDS_SECONDS, histogram.counts, strict=False):
        seen += count
        if count and seen >= wanted:
            return bound * 1000
    return None
