"""Queues in numbers, by topic and group: what went through the partitions led here, and how they stand now.

Counters are on the node that leads, so a group's are spread over nodes and add up; so do the gauges, but for the age,
of which the largest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.broker import Broker
from penstock.features.queues.leading.shard import Figures
from penstock.features.queues.wire import LaneStats
from penstock.priorities import PRIORITIES

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_COUNTERS: tuple[tuple[str, str, Callable[[Figures], int]], ...] = (
    ("penstock_queue_receives", "Deliveries, the first ones and the others.", lambda at: at.received),
    ("penstock_queue_redeliveries", "Deliveries that were not the first of their message.", lambda at: at.redelivered),
    ("penstock_queue_acks", "Messages acked.", lambda at: at.acked),
    ("penstock_queue_nacks", "Messages that their consumers gave back as failed.", lambda at: at.nacked),
    ("penstock_queue_rejects", "Messages that their consumers sent to the dead letters.", lambda at: at.rejected),
    ("penstock_queue_extends", "Messages whose lease was made longer.", lambda at: at.extended),
    ("penstock_visibility_timeout", "Messages whose lease ended without an answer.", lambda at: at.expired),
    ("penstock_dlq", "Messages written to the dead letters.", lambda at: at.dead_lettered),
)


@dataclass(slots=True)
class Standing:
    """A group as it is now, in the partitions led here."""

    ready: int = 0
    in_flight: int = 0
    waiting: int = 0
    oldest_age_seconds: float = 0.0
    is_paused: bool = False
    lanes: dict[tuple[int, str], LaneStats] = field(default_factory=dict)  # by partition and lane


_GAUGES: tuple[tuple[str, str, Callable[[Standing], float]], ...] = (
    ("penstock_queue_ready", "Messages never delivered.", lambda at: at.ready),
    ("penstock_queue_in_flight", "Messages under a lease.", lambda at: at.in_flight),
    ("penstock_queue_waiting", "Messages to be delivered again, now or later.", lambda at: at.waiting),
    ("penstock_queue_oldest_age_seconds", "Age of the oldest message not done.", lambda at: at.oldest_age_seconds),
    ("penstock_queue_paused", "Whether the group hands out nothing.", lambda at: int(at.is_paused)),
)

_LANE_GAUGES: tuple[tuple[str, str, Callable[[LaneStats], int]], ...] = (
    ("penstock_queue_lane_ready", "Messages of a lane that can be handed out.", lambda lane: lane.ready),
    ("penstock_queue_lane_in_flight", "Messages of a lane under a lease.", lambda lane: lane.in_flight),
)

Standings = dict[tuple[str, str], Standing]


async def standings_of(broker: Broker, rows_max: int) -> Standings:
    """How the groups of the partitions led here stand, ``rows_max`` of them at most."""
    found: Standings = {}
    now_ms = broker.clock.now_ms()
    for topic, report in await broker.queues.led_here():
        key = (topic, report.group)
        if key not in found and len(found) >= rows_max:
            continue
        standing, stats = found.setdefault(key, Standing()), report.stats
        standing.ready += stats.ready
        standing.in_flight += stats.in_flight
        standing.waiting += stats.waiting
        standing.is_paused |= report.is_paused
        standing.lanes.update({(stats.partition, lane.lane): lane for lane in stats.lanes})
        if stats.oldest_ms is not None:
            standing.oldest_age_seconds = max(standing.oldest_age_seconds, (now_ms - stats.oldest_ms) / 1000)
    return found


def collect_queues(broker: Broker, standings: Standings, rows_max: int) -> Iterable[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    labels = ["topic", "group"]
    figures = broker.queues.figures.items()[:rows_max]
    for name, text, count in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=labels)
        for key, counted in figures:
            counter.add_metric(list(key), count(counted))
        yield counter
    for name, text, value in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=labels)
        for key, standing in standings.items():
            gauge.add_metric(list(key), value(standing))
        yield gauge
    yield from _collect_lanes(standings)
    opened = CounterMetricFamily("penstock_queue_breaker_opened", "Times that failures paused it.", labels=labels)
    for key, times in sorted(broker.queues.breakers.opened.items())[:rows_max]:
        opened.add_metric(list(key), times)
    yield opened


def _collect_lanes(standings: Standings) -> Iterable[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    labels = ["topic", "group", "lane"]
    families = [(GaugeMetricFamily(name, text, labels=labels), value) for name, text, value in _LANE_GAUGES]
    served = CounterMetricFamily("penstock_queue_lane_served", "Deliveries of a lane.", labels=labels)
    for key, standing in standings.items():
        for name in PRIORITIES if standing.lanes else ():
            lanes = [lane for (_, of), lane in standing.lanes.items() if of == name]
            for family, value in families:
                family.add_metric([*key, name], sum(map(value, lanes)))
            served.add_metric([*key, name], sum(lane.served for lane in lanes))
    yield from (family for family, _ in families)
    yield served
