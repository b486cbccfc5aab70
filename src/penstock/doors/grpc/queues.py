"""Queues over gRPC: messages on lease, and the groups that they are leased to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.fields import duration, duration_ms, group_of, needed, receipts_of, start_of, whole
from penstock.doors.grpc.lanes import get_lanes
from penstock.doors.grpc.messages import leased_view, stored_view, views_of
from penstock.doors.grpc.method import Conversing, Method, Unary
from penstock.doors.grpc.receiving import Wanted, give_back, receive_for
from penstock.doors.grpc.settling import results_of, timeout_of
from penstock.doors.grpc.subscription import subscribe
from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.grpc.generated import queues_pb2
from penstock.grpc.generated.queues_pb2 import MessageState

_MESSAGES_MAX: Final = 10_000
_WAIT_MS_MAX: Final = 60_000
_BYTES: Final = 3 * 1024 * 1024
_BYTES_MAX: Final = 64 * 1024 * 1024
# So long before the client gives up the answer has to be on its way.
_MARGIN_MS: Final = 100

_STATES: Final[Mapping[str, MessageState.ValueType]] = {
    "ready": MessageState.MESSAGE_STATE_READY,
    "in_flight": MessageState.MESSAGE_STATE_IN_FLIGHT,
    "waiting": MessageState.MESSAGE_STATE_WAITING,
    "dying": MessageState.MESSAGE_STATE_DYING,
}


class _Named(Protocol):
    """A request about one group of one topic."""

    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str: ...


def _name(request: _Named) -> tuple[str, str]:
    return needed(request.topic, "topic"), group_of(request.group)


async def receive(door: Door, call: Call, request: queues_pb2.ReceiveRequest) -> queues_pb2.ReceiveResponse:
    topic, group = _name(request)
    wait_ms = duration_ms(request.wait, "wait", high_ms=_WAIT_MS_MAX) if request.HasField("wait") else 0
    wanted = Wanted(
        topic=topic,
        group=group,
        consumer=request.consumer,
        max_messages=whole(request.max_messages, "max_messages", low=1, high=_MESSAGES_MAX, default=1),
        max_bytes=whole(request.max_bytes, "max_bytes", low=1, high=_BYTES_MAX, default=_BYTES),
        visibility_timeout_ms=timeout_of(request),
    )
    results: list[queues_pb2.SettleResult] = []
    if request.ack_receipts:
        receipts = receipts_of(request.ack_receipts, "ack_receipts")
        verdicts = await door.broker.queues.ack(group, receipts, topic=topic)
        results = results_of(verdicts)
        if any(verdict.error is not None or verdict.fate is not ReceiptOutcome.DONE for verdict in verdicts):
            return queues_pb2.ReceiveResponse(ack_results=results)
    messages = await receive_for(door, call, wanted, call.milliseconds_left(wait_ms, _MARGIN_MS))
    try:
        views = await views_of(leased_view, messages)
    except asyncio.CancelledError:
        give_back(door, wanted, messages)
        raise
    return queues_pb2.ReceiveResponse(messages=views, ack_results=results)


async def declare_group(
    door: Door, _call: Call, request: queues_pb2.DeclareGroupRequest
) -> queues_pb2.DeclareGroupResponse:
    topic, group = _name(request)
    await door.broker.queues.declare(topic, group, start=start_of(request.start), settings=dict(request.settings))
    return queues_pb2.DeclareGroupResponse()


async def get_stats(door: Door, _call: Call, request: queues_pb2.GetStatsRequest) -> queues_pb2.GetStatsResponse:
    found = await door.broker.queues.stats(needed(request.topic, "topic"), request.group or None)
    now_ms = door.broker.clock.now_ms()
    return queues_pb2.GetStatsResponse(
        groups=[
            queues_pb2.GroupStats(
                topic=stats.topic,
                group=stats.group,
                settings=stats.settings.shown(),
                is_paused=stats.is_paused,
                pause_reason=stats.pause_reason,
                partitions=[
                    queues_pb2.PartitionStats(
                        partition=part.partition,
                        committed=part.committed,
                        end=part.end,
                        ready=part.ready,
                        in_flight=part.in_flight,
                        waiting=part.waiting,
                        dying=part.dying,
                        acked_ahead=part.acked_ahead,
                        oldest_age=None if part.oldest_ms is None else duration(max(now_ms - part.oldest_ms, 0)),
                    )
                    for part in stats.partitions
                ],
            )
            for stats in found
        ]
    )


async def peek(door: Door, _call: Call, request: queues_pb2.PeekRequest) -> queues_pb2.PeekResponse:
    topic, group = _name(request)
    limit = whole(request.max_messages, "max_messages", low=1, high=_MESSAGES_MAX, default=10)
    found = await door.broker.queues.peek(topic, group, max_messages=limit)
    return queues_pb2.PeekResponse(
        messages=[
            queues_pb2.PeekedMessage(
                message=stored_view(topic, peeked.partition, peeked.record),
                state=_STATES[peeked.state],
                delivery_count=peeked.delivery_count,
            )
            for peeked in found
        ]
    )


async def pause_group(door: Door, _call: Call, request: queues_pb2.PauseGroupRequest) -> queues_pb2.PauseGroupResponse:
    await door.broker.queues.pause(*_name(request), request.reason)
    return queues_pb2.PauseGroupResponse()


async def resume_group(
    door: Door, _call: Call, request: queues_pb2.ResumeGroupRequest
) -> queues_pb2.ResumeGroupResponse:
    await door.broker.queues.resume(*_name(request))
    return queues_pb2.ResumeGroupResponse()


async def purge_group(door: Door, _call: Call, request: queues_pb2.PurgeGroupRequest) -> queues_pb2.PurgeGroupResponse:
    await door.broker.queues.purge(*_name(request))
    return queues_pb2.PurgeGroupResponse()


async def seek_group(door: Door, _call: Call, request: queues_pb2.SeekGroupRequest) -> queues_pb2.SeekGroupResponse:
    await door.broker.queues.seek(*_name(request), start_of(request.start))
    return queues_pb2.SeekGroupResponse()


async def delete_group(
    door: Door, _call: Call, request: queues_pb2.DeleteGroupRequest
) -> queues_pb2.DeleteGroupResponse:
    await door.broker.queues.forget(*_name(request))
    return queues_pb2.DeleteGroupResponse()


METHODS: Final[Mapping[str, Method]] = {
    "Receive": Unary(receive),
    "Subscribe": Conversing(subscribe),
    "DeclareGroup": Unary(declare_group),
    "GetStats": Unary(get_stats),
    "GetLanes": Unary(get_lanes),
    "Peek": Unary(peek),
    "PauseGroup": Unary(pause_group),
    "ResumeGroup": Unary(resume_group),
    "PurgeGroup": Unary(purge_group),
    "SeekGroup": Unary(seek_group),
    "DeleteGroup": Unary(delete_group),
}
