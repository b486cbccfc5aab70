"""Serves queues: receive under a lease, then ack, nack, reject or extend; look at groups and steer them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from datetime import datetime
from struct import Struct
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from penstock.api import limits
from penstock.api.messages import instant, to_ms, view_of
from penstock.api.operation import Packed
from penstock.api.problems import problem_of
from penstock.api.queues import (
    FAILED,
    Ack,
    DeclareQueueGroup,
    DescribeLanes,
    DescribeQueue,
    DescribeQueueGroup,
    Extend,
    ForgetQueueGroup,
    LaneGroupView,
    LanePartitionView,
    LanesView,
    LaneView,
    ListQueues,
    Nack,
    PartView,
    PauseQueueGroup,
    PeekedMessage,
    PeekedMessages,
    PeekQueueGroup,
    PurgeQueue,
    QueueCounts,
    QueueGroupView,
    QueueList,
    QueueMessage,
    QueuePartitionView,
    QueueSummary,
    QueueView,
    ReceiptResult,
    ReceiptResults,
    Receive,
    Received,
    Reject,
    Release,
    ResumeQueueGroup,
    SeekQueueGroup,
)
from penstock.consensus.queue_config import Lanes
from penstock.errors import ClientGone, GroupNotFound, InvalidField, InvalidRequest, NotCoordinator, PenstockError
from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.features.queues.leases import (
    LeasedRecord,
    PartitionLease,
    SettledReceipt,
    reject_unreadable,
    unpack_beside,
)
from penstock.features.queues.queues import Queues
from penstock.features.queues.wire import GroupStats, LaneStats, PeekedRecord
from penstock.model import QUEUE_STATE_PREFIX
from penstock.operations.caller import Caller, Waiting
from penstock.operations.services import Services
from penstock.operations.serving import serves
from penstock.partitions.access import SinceTime, Start
from penstock.partitions.beside import show_beside
from penstock.priorities import PRIORITIES
from penstock.records import Record

log = logging.getLogger(__name__)

_LEASE: Final = b"\x96"  # an array of six
_BYTES: Final = Struct(">BI")
_BYTES_FORM: Final = 0xC6
_ARRAY_FORM: Final = 0xDD

_encoder: Final = msgspec.msgpack.Encoder()

# -- receiving ---------------------------------------------------------------------------------------------------------


@serves(Receive)
async def receive(services: Services, request: Receive, caller: Caller) -> Received | Packed:
    queues = services.queues
    if request.attempt:
        await queues.begin_attempt(request.topic, request.group, request.attempt, is_repeat=request.is_repeat)
    acked: list[ReceiptResult] = []
    leases: list[PartitionLease] = []
    if request.ack:
        verdicts, leases = await _ack_and_receive(services, request, caller)
        acked = results_of(verdicts, caller.instance)
        if not all(map(is_done, verdicts)):
            await give_back_leases(queues, request.group, leases)
            raise_if_unanswered(verdicts)
            return Received(messages=[], acked=acked)
    if caller.wants_packed:
        return packed_leases(
            leases or await _receive(services, request, caller, caller.milliseconds_left(request.wait_ms))
        )
    messages = await message_views(await _receive_readable(services, request, caller, leases))
    if caller.is_gone:
        await give_back(queues, request.group, [message.receipt for message in messages])
        raise ClientGone("The client went away before its answer was there.")
    return Received(messages=messages, acked=acked) if acked else Received(messages=messages)


async def _ack_and_receive(
    services: Services, request: Receive, caller: Caller
) -> tuple[Sequence[SettledReceipt], list[PartitionLease]]:
    """Ack, and while that is being made safe receive what there is: both are safe at the same time.

    An ack takes effect as it is written, so what it makes room for can be received behind it. Where it was refused, or
    does not have to be waited for, nothing is received here.
    """
    acking = asyncio.ensure_future(services.queues.ack(request.group, request.ack, topic=request.topic))
    leases: list[PartitionLease] = []
    try:
        await asyncio.sleep(0)
        if not acking.done():
            with contextlib.suppress(PenstockError):  # the caller tries again, once the ack is safe
                leases = await _receive(services, request, caller, wait_ms=0)
        return await acking, leases
    except PenstockError:
        await give_back_leases(services.queues, request.group, leases)
        raise
    finally:
        acking.cancel()


async def _receive_readable(
    services: Services, request: Receive, caller: Caller, leases: list[PartitionLease]
) -> list[LeasedRecord]:
    """Messages one by one, of ``leases`` first; what cannot be unpacked goes to the dead letters, and is not what the
    client waits for.
    """
    clock = services.clock
    deadline = clock.monotonic() + caller.milliseconds_left(request.wait_ms) / 1000
    while True:
        left_ms = max(round(1000 * (deadline - clock.monotonic())), 0)
        leases = leases or await _receive(services, request, caller, left_ms)
        messages, unreadable, left = await unpack_beside(leases, _bytes_max(request, caller))
        await give_back(services.queues, request.group, left)
        await reject_unreadable(services.queues, request.group, unreadable)
        if messages or not leases:
            return messages
        leases = []


def _bytes_max(request: Receive, caller: Caller) -> int:
    limit = limits.LEASED_BYTES_MAX if caller.wants_packed else caller.answer_bytes_max
    return min(request.max_bytes or limit, limit)


async def _receive(services: Services, request: Receive, caller: Caller, wait_ms: int) -> list[PartitionLease]:
    """What there is; where there is nothing yet, what comes, as long as the client waits for it."""
    queues = services.queues
    wanted: dict[str, Any] = {
        "consumer": request.consumer,
        "max_messages": request.max,
        "max_bytes": _bytes_max(request, caller),
        "visibility_timeout_ms": request.visibility_timeout_ms,
        "attempt": request.attempt,
    }
    leases = await queues.receive(request.topic, request.group, **wanted)
    if leases or not wait_ms:
        return leases
    waited = queues.receive(request.topic, request.group, **wanted, wait_ms=wait_ms)
    async with Waiting(caller, waited) as waiting:
        try:
            leases = await waiting.result()
        except NotCoordinator:
            if not caller.stopping.is_set():
                raise
            return []  # single calls are answered while the node stops
        if leases and waiting.is_client_gone:
            await give_back_leases(queues, request.group, leases)
    return leases


# -- settling ----------------------------------------------------------------------------------------------------------


@serves(Ack)
async def ack(services: Services, request: Ack, caller: Caller) -> ReceiptResults:
    entry: dict[str, str] = {}
    if request.transaction is not None:
        entry = {"transaction": request.transaction, "writer": request.writer or limits.DEFAULT_WRITER}
    elif request.writer is not None:
        raise InvalidField("A writer means nothing without a transaction.", is_parameter=True)
    verdicts = await services.queues.ack(request.group, request.receipts, topic=request.topic, **entry)
    return results_or_raise(verdicts, caller)


@serves(Nack)
async def nack(services: Services, request: Nack, caller: Caller) -> ReceiptResults:
    verdicts = await services.queues.nack(
        request.group, request.receipts, topic=request.topic, delay_ms=request.delay_ms, reason=request.reason
    )
    return results_or_raise(verdicts, caller)


@serves(Reject)
async def reject(services: Services, request: Reject, caller: Caller) -> ReceiptResults:
    verdicts = await services.queues.reject(request.group, request.receipts, topic=request.topic, reason=request.reason)
    return results_or_raise(verdicts, caller)


@serves(Extend)
async def extend(services: Services, request: Extend, caller: Caller) -> ReceiptResults:
    verdicts = await services.queues.extend(
        request.group, request.receipts, topic=request.topic, visibility_timeout_ms=request.visibility_timeout_ms
    )
    return results_or_raise(verdicts, caller)


@serves(Release)
async def release(services: Services, request: Release, caller: Caller) -> ReceiptResults:
    verdicts = await services.queues.release(request.group, request.receipts, topic=request.topic)
    return results_or_raise(verdicts, caller)


def results_or_raise(verdicts: Sequence[SettledReceipt], caller: Caller) -> ReceiptResults:
    """What became of each receipt; the first error where nothing is known of any of them."""
    raise_if_unanswered(verdicts)
    return ReceiptResults(results=results_of(verdicts, caller.instance))


def raise_if_unanswered(verdicts: Sequence[SettledReceipt]) -> None:
    """Raise the first error if there is one for every receipt: then nothing is known of any of them."""
    errors = [verdict.error for verdict in verdicts if verdict.error is not None]
    if errors and len(errors) == len(verdicts):
        raise errors[0]


async def give_back_leases(queues: Queues, group: str, leases: Sequence[PartitionLease]) -> None:
    """Have messages that their client did not get delivered again at once, as if they never had been."""
    await give_back(queues, group, [receipt for lease in leases for receipt in lease.receipts()])


async def give_back(queues: Queues, group: str, receipts: Sequence[str]) -> None:
    """The same by their receipts. What fails waits for the end of its lease."""
    if not receipts:
        return
    try:
        await queues.release(group, receipts)
    except PenstockError as error:
        log.debug("Messages that their client did not get come again only after their lease: %s", error.message)


# -- groups ------------------------------------------------------------------------------------------------------------


@serves(ListQueues)
async def list_queues(services: Services, _request: ListQueues, _caller: Caller) -> QueueList:
    names = [
        name.removeprefix(QUEUE_STATE_PREFIX)
        for name in sorted(services.metadata.topics)
        if name.startswith(QUEUE_STATE_PREFIX)
    ]
    groups = await asyncio.gather(*(services.queues.groups(name) for name in names))
    return QueueList(queues=[QueueSummary(topic=name, groups=found) for name, found in zip(names, groups, strict=True)])


@serves(DescribeQueue)
async def describe_queue(services: Services, request: DescribeQueue, _caller: Caller) -> QueueView:
    stats = await services.queues.stats(request.topic, request.group)
    now_ms = services.clock.now_ms()
    groups = [group_view(each, now_ms) for each in sorted(stats, key=lambda each: each.group)]
    dead = await still_dead(services, request.topic)
    return QueueView(topic=request.topic, groups=groups, dead_letters=dead, **_sums(groups))


async def still_dead(services: Services, topic: str) -> int | None:
    """About how many dead letters a topic has; None if that cannot be told now."""
    try:
        found = await services.dead_letters.count(topic)
    except PenstockError:
        return None
    return 0 if found.topic == topic else found.dead


@serves(PurgeQueue)
async def purge_queue(services: Services, request: PurgeQueue, _caller: Caller) -> QueueGroupView:
    await services.queues.purge(request.topic, request.group)
    return await _show(services, request.topic, request.group)


@serves(DescribeQueueGroup)
async def describe_queue_group(services: Services, request: DescribeQueueGroup, _caller: Caller) -> QueueGroupView:
    return await _show(services, request.topic, request.group)


@serves(DeclareQueueGroup)
async def declare_queue_group(services: Services, request: DeclareQueueGroup, _caller: Caller) -> QueueGroupView:
    start = start_of(request.start, request.since)
    settings = {name: str(value) for name, value in request.settings.items()}
    begin: Start = "earliest" if start is None else start
    await services.queues.declare(request.topic, request.group, start=begin, settings=settings)
    return await _show(services, request.topic, request.group)


@serves(ForgetQueueGroup)
async def forget_queue_group(services: Services, request: ForgetQueueGroup, _caller: Caller) -> None:
    await services.queues.forget(request.topic, request.group)


@serves(PauseQueueGroup)
async def pause_queue_group(services: Services, request: PauseQueueGroup, _caller: Caller) -> QueueGroupView:
    await services.queues.pause(request.topic, request.group, request.reason)
    return await _show(services, request.topic, request.group)


@serves(ResumeQueueGroup)
async def resume_queue_group(services: Services, request: ResumeQueueGroup, _caller: Caller) -> QueueGroupView:
    await services.queues.resume(request.topic, request.group)
    return await _show(services, request.topic, request.group)


@serves(SeekQueueGroup)
async def seek_queue_group(services: Services, request: SeekQueueGroup, _caller: Caller) -> QueueGroupView:
    start = start_of(request.to, request.since)
    if start is None:
        raise InvalidRequest("Give `to` (an offset, earliest or latest) or `since` (an instant).")
    await services.queues.seek(request.topic, request.group, start)
    return await _show(services, request.topic, request.group)


@serves(PeekQueueGroup)
async def peek_queue_group(services: Services, request: PeekQueueGroup, _caller: Caller) -> PeekedMessages:
    peeked = await services.queues.peek(request.topic, request.group, max_messages=request.max)
    return await show_beside(
        (each.record for each in peeked),
        lambda: PeekedMessages(messages=[_peeked_view(request.topic, each) for each in peeked]),
    )


async def _show(services: Services, topic: str, group: str) -> QueueGroupView:
    stats = await services.queues.stats(topic, group)
    if not stats:
        raise GroupNotFound(f"Topic {topic!r} has no queue group {group!r}.")
    return group_view(stats[0], services.clock.now_ms())


def start_of(offset: int | Literal["earliest", "latest"] | None, since: datetime | None) -> Start | None:
    """Where to begin, None if nothing says so."""
    if offset is not None and since is not None:
        raise InvalidRequest("Give an offset (or earliest, latest) or an instant, not both.")
    return offset if since is None else SinceTime(to_ms(since))


@serves(DescribeLanes)
async def describe_lanes(services: Services, request: DescribeLanes, _caller: Caller) -> LanesView:
    stats = await services.queues.stats(request.topic, request.group)
    now_ms = services.clock.now_ms()
    groups = [_lane_group_view(each, now_ms) for each in sorted(stats, key=lambda each: each.group)]
    return LanesView(topic=request.topic, groups=groups)


# -- what clients are told ---------------------------------------------------------------------------------------------

# What a caller should make of a receipt that did not do what it was asked for.
_DETAILS: Final = {
    ReceiptOutcome.ALREADY_ACKED: "The message is acked already; there is nothing left to do.",
    ReceiptOutcome.LEASE_OVER: "The lease ended before; the message will be delivered again.",
    ReceiptOutcome.REDELIVERED: "The lease ended before, and the message was delivered to somebody else.",
    ReceiptOutcome.DEAD_LETTERED: "The message went to the dead letters.",
    ReceiptOutcome.REPEATED: "The receipt was named more than once in this call, and counted once.",
    ReceiptOutcome.IN_TRANSACTION: "The message is acked in a transaction that is still open; its end decides.",
    ReceiptOutcome.UNKNOWN: "This group never gave out such a receipt, or was moved to another offset since.",
    ReceiptOutcome.FOREIGN: "The receipt is of another topic or partition.",
    ReceiptOutcome.MALFORMED: "This is no receipt; show it exactly as it was received.",
}


async def message_views(messages: Sequence[LeasedRecord]) -> list[QueueMessage]:
    """Leased messages as JSON has them."""
    return await show_beside(messages, lambda: list(map(message_view, messages)))


def message_view(message: LeasedRecord) -> QueueMessage:
    record = Record(message.offset, message.timestamp_ms, message.key, message.value, message.headers)
    return QueueMessage(
        **asdict(view_of(record)),
        receipt=message.receipt,
        topic=message.topic,
        partition=message.partition,
        delivery_count=message.delivery_count,
        lease_until=instant(message.lease_until_ms),
    )


def _peeked_view(topic: str, peeked: PeekedRecord) -> PeekedMessage:
    """A message that somebody only looked at."""
    return PeekedMessage(
        **asdict(view_of(peeked.record)),
        topic=topic,
        partition=peeked.partition,
        state=peeked.state,
        delivery_count=peeked.delivery_count,
    )


def is_done(verdict: SettledReceipt) -> bool:
    return verdict.error is None and verdict.fate is ReceiptOutcome.DONE


def results_of(verdicts: Sequence[SettledReceipt], path: str) -> list[ReceiptResult]:
    """What became of each receipt, told to its caller; ``path`` is where it was asked for."""
    return [_result(verdict, path) for verdict in verdicts]


def _result(verdict: SettledReceipt, path: str) -> ReceiptResult:
    if verdict.error is not None:
        return ReceiptResult(receipt=verdict.receipt, status=FAILED, error=problem_of(verdict.error, path))
    fate = verdict.fate
    parts: list[PartView] | UnsetType = UNSET
    if fate is not ReceiptOutcome.DONE and len(verdict.parts) > 1:
        parts = [PartView(first=part.first, last=part.last, status=part.fate.value) for part in verdict.parts]
    return ReceiptResult(receipt=verdict.receipt, status=fate.value, detail=_DETAILS.get(fate, UNSET), parts=parts)


def packed_leases(leases: Sequence[PartitionLease]) -> Packed:
    """Leases as they are: batches in bulk, and which of their messages are leased."""
    pieces: list[bytes] = []
    for lease in leases:
        *told, batches = lease
        head = _LEASE + b"".join(map(_encoder.encode, told)) + _BYTES.pack(_BYTES_FORM, len(batches))
        pieces += (head, batches)
    if not pieces:
        return Packed((_encoder.encode(()),))
    pieces[0] = _array_head(len(leases)) + pieces[0]
    return Packed(tuple(pieces))


def _array_head(count: int) -> bytes:
    return _BYTES.pack(_ARRAY_FORM, count)


def group_view(stats: GroupStats, now_ms: int) -> QueueGroupView:
    partitions = [
        QueuePartitionView(
            partition=at.partition,
            committed=at.committed,
            end=at.end,
            ready=at.ready,
            in_flight=at.in_flight,
            waiting=at.waiting,
            dying=at.dying,
            acked_ahead=at.acked_ahead,
            oldest_age_ms=None if at.oldest_ms is None else max(now_ms - at.oldest_ms, 0),
        )
        for at in stats.partitions
    ]
    return QueueGroupView(
        topic=stats.topic,
        group=stats.group,
        paused=stats.is_paused,
        pause_reason=stats.pause_reason,
        settings=stats.settings.shown(),
        own_settings=dict(stats.own_settings),
        partitions=partitions,
        **_sums(partitions),
    )


def _sums(rows: Sequence[QueueCounts]) -> dict[str, Any]:
    ages = [row.oldest_age_ms for row in rows if row.oldest_age_ms is not None]
    return {
        "ready": sum(row.ready for row in rows),
        "in_flight": sum(row.in_flight for row in rows),
        "waiting": sum(row.waiting for row in rows),
        "dying": sum(row.dying for row in rows),
        "acked_ahead": sum(row.acked_ahead for row in rows),
        "oldest_age_ms": max(ages, default=None),
    }


def _lane_group_view(stats: GroupStats, now_ms: int) -> LaneGroupView:
    settings = stats.settings
    is_on = settings.lanes is Lanes.ON
    return LaneGroupView(
        group=stats.group,
        is_on=is_on,
        weights=dict(zip(PRIORITIES, settings.lane_weights, strict=True)),
        boost_ms=settings.lane_boost_ms,
        fair_by=settings.fair_by,
        unseen=sum(part.unseen for part in stats.partitions),
        lanes=[lane_view(each, settings.lane_weights, now_ms) for each in added(stats)],
        partitions=[
            LanePartitionView(
                partition=part.partition,
                unseen=part.unseen,
                lanes=[lane_view(each, settings.lane_weights, now_ms) for each in part.lanes],
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


def lane_view(lane: LaneStats, weights: Sequence[int], now_ms: int) -> LaneView:
    return LaneView(
        lane=lane.lane,
        weight=weights[PRIORITIES.index(lane.lane)],
        ready=lane.ready,
        in_flight=lane.in_flight,
        served=lane.served,
        served_per_second=lane.served_per_second,
        last_served=None if lane.last_served_ms is None else instant(lane.last_served_ms),
        oldest_age_ms=None if lane.oldest_ms is None else max(now_ms - lane.oldest_ms, 0),
    )
