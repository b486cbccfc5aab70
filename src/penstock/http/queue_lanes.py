"""The lanes of queue groups over REST: what waits, what is out and what was served, by lane and partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.broker.queues.reports import GroupStats, LaneStats
from penstock.cluster.queue_config import Lanes
from penstock.http.door import Door
from penstock.http.exchange import Call
from penstock.http.message_types import Instant, instant
from penstock.priorities import PRIORITIES


class LanesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group: Annotated[str | None, Meta(description="Only this group; without it, all of the topic.")] = None


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """One lane. `ready` can be handed out now, as far as messages were looked at."""

    lane: str
    ready: int
    in_flight: int
    served: Annotated[int, Meta(description="Deliveries since the partition's leader leads it.")]
    served_per_second: Annotated[float, Meta(description="Over about the last ten seconds.")]
    last_served: Instant | None
    oldest_age_ms: Annotated[int | None, Meta(description="Of the oldest that is ready.")]


class LanePartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes of one partition; `unseen` messages were not looked at yet, so nobody knows their lane."""

    partition: int
    unseen: int
    lanes: list[LaneView]


class LaneGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group's lanes in all partitions together, and in each. Both are empty where it has none."""

    group: str
    is_on: bool
    weights: dict[str, int]
    boost_ms: int
    fair_by: str
    unseen: int
    lanes: list[LaneView]
    partitions: list[LanePartitionView]


class LanesView(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    groups: list[LaneGroupView]


async def describe_lanes(door: Door, call: Call[None, LanesQuery]) -> LanesView:
    """The lanes of a topic's queue groups: ready, in flight, served and oldest, by lane and partition."""
    stats = await door.broker.queues.stats(call.topic, call.query.group)
    now_ms = door.broker.clock.now_ms()
    groups = [_group_view(each, now_ms) for each in sorted(stats, key=lambda each: each.group)]
    return LanesView(topic=call.topic, groups=groups)


def _group_view(stats: GroupStats, now_ms: int) -> LaneGroupView:
    settings = stats.settings
    is_on = settings.lanes is Lanes.ON
    return LaneGroupView(
        group=stats.group,
        is_on=is_on,
        weights=dict(zip(PRIORITIES, settings.lane_weights, strict=True)),
        boost_ms=settings.lane_boost_ms,
        fair_by=settings.fair_by,
        unseen=sum(part.unseen for part in stats.partitions),
        lanes=[lane_view(each, now_ms) for each in added(stats)],
        partitions=[
            LanePartitionView(
                partition=part.partition, unseen=part.unseen, lanes=[lane_view(each, now_ms) for each in part.lanes]
            )
            for part in stats.partitions
            if is_on
        ],
    )


def added(stats: GroupStats) -> list[LaneStats]:
    """The lanes of a group, all partitions together; none where it has none."""
    by_lane = [[lane for part in stats.partitions for lane in part.lanes if lane.lane == name] for name in PRIORITIES]
    return [_sum(lanes) for lanes in by_lane if lanes]


def _sum(lanes: Sequence[LaneStats]) -> LaneStats:
    served = [lane.last_served_ms for lane in lanes if lane.last_served_ms is not None]
    oldest = [lane.oldest_ms for lane in lanes if lane.oldest_ms is not None]
    return LaneStats(
        lane=lanes[0].lane,
        ready=sum(lane.ready for lane in lanes),
        in_flight=sum(lane.in_flight for lane in lanes),
        served=sum(lane.served for lane in lanes),
        served_per_second=round(sum(lane.served_per_second for lane in lanes), 3),
        last_served_ms=max(served, default=None),
        oldest_ms=min(oldest, default=None),
    )


def lane_view(lane: LaneStats, now_ms: int) -> LaneView:
    return LaneView(
        lane=lane.lane,
        ready=lane.ready,
        in_flight=lane.in_flight,
        served=lane.served,
        served_per_second=lane.served_per_second,
        last_served=None if lane.last_served_ms is None else instant(lane.last_served_ms),
        oldest_age_ms=None if lane.oldest_ms is None else max(now_ms - lane.oldest_ms, 0),
    )
