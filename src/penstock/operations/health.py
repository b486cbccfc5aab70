"""Serves what one node tells of itself: health, figures, and the scrub of its disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock import __version__
from penstock.api.health import (
    DescribeFigures,
    DescribeHealth,
    DescribeScrub,
    Finding,
    Health,
    IsAlive,
    IsReady,
    LatencyView,
    Liveness,
    MetricsView,
    ScrubNow,
    ScrubView,
    TopicFigures,
)
from penstock.model import is_internal
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import serves
from penstock.partitions.damage import is_damaged
from penstock.partitions.partition import Partition
from penstock.partitions.replicas import Replicas
from penstock.partitions.stats import LATENCY_BOUNDS_SECONDS, Histogram, TopicStats

_REASONS_MAX: Final = 100


@serves(IsAlive)
async def is_alive(_services: Services, _request: IsAlive, _caller: Caller) -> Liveness:
    return Liveness()


@serves(IsReady)
async def is_ready(services: Services, _request: IsReady, caller: Caller) -> Health:
    return _examine(services, caller)


@serves(DescribeHealth)
async def describe_health(services: Services, _request: DescribeHealth, caller: Caller) -> Health:
    return _examine(services, caller)


def _examine(services: Services, caller: Caller) -> Health:
    """Look at every partition on this node."""
    reasons: list[Finding] = []
    warnings: list[Finding] = []
    if caller.stopping.is_set():
        reasons.append(Finding(code="stopping", detail="The node is stopping."))
    reasons += _membership(services)
    if not reasons and not services.broker.is_started:
        reasons.append(Finding(code="starting", detail="The node is starting."))
    reasons += [
        Finding(code="background_task", detail=f"The background task {name!r} failed a moment ago: {why}.")
        for name, why in services.supervision.troubles()
    ]
    concerns = ((code, look()) for code, look in services.concerns.items())
    warnings += [Finding(code=code, detail=detail) for code, detail in concerns if detail is not None]
    for partition in services.replicas:
        failure = partition.log.failure
        if failure is not None:
            reasons.append(_finding(partition, failure.code, failure.message))
        if partition.log.corrupt_bytes:
            warnings.append(
                _finding(
                    partition,
                    "corrupt_bytes",
                    f"{partition.log.corrupt_bytes} bytes of {partition.log.directory} fail their checksums and are "
                    "not served; nothing was deleted.",
                )
            )
        warnings += [
            _finding(
                partition,
                "lost_records",
                f"Offsets {lost.first} to {lost.next - 1} are lost: no replica has them any more. Readers go past.",
            )
            for lost in partition.log.lost
        ]
    if services.broker.config.security.insecure:
        warnings.append(
            Finding(
                code="insecure", detail="Every client that reaches this node may do everything (security.insecure)."
            )
        )
    return Health(
        status="unready" if reasons else "degraded" if warnings else "ok",
        reasons=reasons[:_REASONS_MAX],
        warnings=warnings[:_REASONS_MAX],
        node_id=services.node_id,
        version=__version__,
        uptime_ms=max(services.clock.now_ms() - services.started_at_ms, 0),
        partitions=len(services.replicas),
    )


def _membership(services: Services) -> Iterator[Finding]:
    """What keeps the node from taking part in the cluster."""
    if not services.registration.has_quorum:
        yield Finding(code="no_quorum", detail="The node has not heard of the cluster's controller for a while.")
    node = services.metadata.nodes.get(services.node_id)
    if node is None:
        yield Finding(code="not_registered", detail="The node has not been taken into the cluster yet.")
    elif node.is_fenced:
        yield Finding(code="fenced", detail="The cluster does not count on this node until it has caught up.")


def _finding(partition: Partition, code: str, detail: str) -> Finding:
    return Finding(code=code, detail=detail, topic=partition.id.topic, partition=partition.id.partition)


# -- figures -----------------------------------------------------------------------------------------------------------


@serves(DescribeFigures)
async def describe_figures(services: Services, _request: DescribeFigures, _caller: Caller) -> MetricsView:
    now_ms, stats = services.clock.now_ms(), services.stats
    return MetricsView(
        time_ms=now_ms,
        uptime_ms=max(now_ms - services.started_at_ms, 0),
        topics=[figures for figures in topic_figures(services.replicas) if not is_internal(figures.topic)],
        log_append_latency=_latency(stats.append_latency),
        log_sync_latency=_latency(stats.sync_latency),
        produce_latency=_latency(stats.produce_latency),
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


def topic_figures(replicas: Replicas) -> list[TopicFigures]:
    """The figures of every topic on this node, by name."""
    topics: dict[str, TopicFigures] = {}
    for partition in replicas:
        name, log = partition.id.topic, partition.log
        figures = topics.get(name)
        if figures is None:
            figures = topics[name] = _counters(name, partition.stats)
        figures.partitions += 1
        figures.messages += max(partition.high_watermark - log.start_offset, 0)
        figures.size_bytes += log.size_bytes
        figures.segments += len(log.segments)
        figures.corrupt_bytes += log.corrupt_bytes
    return [topics[name] for name in sorted(topics)]


def _counters(name: str, stats: TopicStats) -> TopicFigures:
    return TopicFigures(
        topic=name,
        messages_produced=stats.messages_produced,
        bytes_produced=stats.bytes_produced,
        messages_consumed=stats.messages_consumed,
        bytes_consumed=stats.bytes_consumed,
        produce_errors=dict(stats.produce_errors),
    )


# -- scrub -------------------------------------------------------------------------------------------------------------


@serves(DescribeScrub)
async def describe_scrub(services: Services, _request: DescribeScrub, _caller: Caller) -> ScrubView:
    return _scrub_view(services, None)


@serves(ScrubNow)
async def scrub_now(services: Services, _request: ScrubNow, _caller: Caller) -> ScrubView:
    return _scrub_view(services, services.scrub.ask())


def _scrub_view(services: Services, asked_round: int | None) -> ScrubView:
    progress = services.scrub.progress
    stats = progress.stats
    return ScrubView(
        node_id=services.node_id,
        is_on=progress.is_on,
        is_running=progress.is_running,
        round=progress.round,
        completed_round=progress.completed_round,
        completed_at_ms=progress.completed_at_ms,
        asked_round=asked_round,
        checked_bytes=stats.bytes,
        checked_segments=stats.segments,
        damaged_segments=stats.damaged,
        unreadable_segments=stats.unreadable,
        repaired_indexes=stats.indexes_repaired,
        damaged_partitions=sum(is_damaged(partition.log) for partition in services.replicas),
        corrupt_bytes=sum(partition.log.corrupt_bytes for partition in services.replicas),
    )
