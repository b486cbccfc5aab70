"""The scrub in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.partitions.scrub import ScrubProgress

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def collect_scrub(progress: ScrubProgress) -> Iterable[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    stats = progress.stats
    yield CounterMetricFamily("penstock_scrub_bytes", "Bytes read again in search of damage.", stats.bytes)
    yield CounterMetricFamily("penstock_scrub_segments", "Segments checked from end to end.", stats.segments)
    yield CounterMetricFamily("penstock_scrub_damage", "Segments in which damage was found.", stats.damaged)
    yield CounterMetricFamily("penstock_scrub_unreadable", "Checks that the disk refused.", stats.unreadable)
    yield CounterMetricFamily("penstock_scrub_indexes_repaired", "Indexes written anew.", stats.indexes_repaired)
    yield CounterMetricFamily("penstock_scrub_rounds", "Rounds that are complete.", progress.completed_round)
    if progress.completed_at_ms is not None:
        yield GaugeMetricFamily(
            "penstock_scrub_last_round_timestamp_seconds",
            "When the last round ended.",
            progress.completed_at_ms / 1000,
        )
