"""The lanes of queue groups over gRPC."""

from __future__ import annotations

from penstock.consensus.queue_config import Lanes
from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.fields import duration, instant, needed
from penstock.features.queues.wire import GroupStats
from penstock.grpc.generated import queues_pb2


async def get_lanes(door: Door, _call: Call, request: queues_pb2.GetLanesRequest) -> queues_pb2.GetLanesResponse:
    found = await door.broker.queues.stats(needed(request.topic, "topic"), request.group or None)
    now_ms = door.broker.clock.now_ms()
    return queues_pb2.GetLanesResponse(groups=[_group_view(stats, now_ms) for stats in found])


def _group_view(stats: GroupStats, now_ms: int) -> queues_pb2.GroupLanes:
    weights = stats.settings.lane_weights
    return queues_pb2.GroupLanes(
        group=stats.group,
        is_on=stats.settings.lanes is Lanes.ON,
        partitions=[
            queues_pb2.PartitionLanes(
                partition=part.partition,
                unseen=part.unseen,
                lanes=[
                    queues_pb2.LaneStats(
                        lane=lane.lane,
                        weight=weight,
                        ready=lane.ready,
                        in_flight=lane.in_flight,
                        served=lane.served,
                        served_per_second=lane.served_per_second,
                        last_served_time=None if lane.last_served_ms is None else instant(lane.last_served_ms),
                        oldest_age=None if lane.oldest_ms is None else duration(max(now_ms - lane.oldest_ms, 0)),
                    )
                    for lane, weight in zip(part.lanes, weights, strict=True)
                ],
            )
            for part in stats.partitions
            if part.lanes
        ],
    )
