"""Pipelines in numbers, at the node that keeps their reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from penstock.broker.broker import Broker
from penstock.operations.pipelines import state_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_STATES: Final = ("starting", "running", "finished", "stopped", "failed", "lost")


def collect_pipelines(broker: Broker) -> Iterable[Metric]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    one, two = ["pipeline"], ["pipeline", "state"]
    state = GaugeMetricFamily("penstock_pipeline_state", "1 for the state that the pipeline is in.", labels=two)
    rows = GaugeMetricFamily("penstock_pipeline_rows", "Rows that its last run has read.", labels=one)
    lag = GaugeMetricFamily("penstock_pipeline_lag_messages", "Messages that it has not read yet.", labels=one)
    unmet = GaugeMetricFamily("penstock_pipeline_unmet_rows", "Rows that met not what was expected.", labels=one)
    took = GaugeMetricFamily("penstock_pipeline_batch_seconds", "How long its longest last batch took.", labels=one)
    told = GaugeMetricFamily("penstock_pipeline_reported_timestamp_seconds", "When it last reported.", labels=one)
    now_ms = broker.clock.now_ms()
    for report in broker.pipelines.reports_here():
        labels = [report.name]
        current = state_of(report, now_ms)
        for each in _STATES:
            state.add_metric([report.name, each], int(each == current))
        rows.add_metric(labels, sum(query.rows for query in report.queries))
        lags = [query.lag for query in report.queries if query.lag is not None]
        if lags:
            lag.add_metric(labels, sum(lags))
        unmet.add_metric(labels, sum(sum(query.unmet.values()) for query in report.queries))
        took.add_metric(labels, max((query.batch_ms for query in report.queries), default=0) / 1000)
        told.add_metric(labels, report.reported_ms / 1000)
    yield from (state, rows, lag, unmet, took, told)
