"""Schedules in numbers, of the shards that this node leads: they add up over nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.broker.broker import Broker
from penstock.features.schedules.figures import LATENESS_MS

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def collect_schedules(broker: Broker) -> Iterable[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    stats = broker.schedules.stats_here()
    yield GaugeMetricFamily("penstock_schedules_pending", "Schedules that are still to come.", stats.pending)
    yield GaugeMetricFamily("penstock_schedules_failed", "Schedules that their topics refused.", stats.failed)
    yield CounterMetricFamily("penstock_schedules_fired", "Messages that came when they were due.", stats.fired_total)
    yield CounterMetricFamily("penstock_schedules_cancelled", "Schedules cancelled.", stats.cancelled_total)
    bounds = [*(str(bound_ms / 1000) for bound_ms in LATENESS_MS), "+Inf"]
    yield HistogramMetricFamily(
        "penstock_schedule_lateness_seconds",
        "From when a message was due until it was in its topic.",
        buckets=list(zip(bounds, stats.lateness, strict=True)),
        sum_value=stats.lateness_sum_ms / 1000,
    )
