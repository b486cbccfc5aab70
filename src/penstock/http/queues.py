"""Queues over REST: receive under a lease, then ack, nack, reject or extend; look at groups and steer them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from penstock.broker.queues.leases import Lease, LeasedMessage, Verdict
from penstock.broker.queues.unpacking import reject_unreadable, unpack_beside
from penstock.errors import GroupNotFound, InvalidRequest, PenstockError
from penstock.http import queue_types as types
from penstock.http.binary import leases_reply
from penstock.http.dead_letters import still_dead
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, no_content, reply
from penstock.http.groups import group_of
from penstock.http.queue_figures import QueueGroupView, QueueList, QueueSummary, QueueView, group_view, queue_view
from penstock.http.undelivered import give_back
from penstock.http.waiting import Waiting
from penstock.model import QUEUE_STATE_PREFIX

_PARTLY: Final = 207
_BINARY_BYTES_MAX: Final = 8 * 1024 * 1024


# -- messages ----------------------------------------------------------------------------------------------------------


async def receive_messages(door: Door, call: Call[types.ReceiveRequest, None]) -> types.Received | Reply:
    """Receive messages under a lease, waiting for the first up to `wait_ms`; what is not acked in time comes again.

    Receipts in `ack` are acked first; if one of them is not, nothing is received, and a 207 tells why. Messages that
    cannot be unpacked go to the dead letters.
    """
    body, queues = call.body, door.broker.queues
    if body.attempt:
        await queues.begin_attempt(call.topic, body.group, body.attempt, is_repeat=body.is_repeat)
    acked: list[types.ReceiptResult] = []
    leases: list[Lease] = []
    if body.ack:
        verdicts, leases = await _ack_and_receive(door, call)
        acked = types.results_of(verdicts, call.path)
        if not all(map(types.is_done, verdicts)):
            await give_back(queues, body.group, leases)
            raise_if_unanswered(verdicts)
            return reply(types.Received(messages=[], acked=acked), _PARTLY)
    if call.wants_binary:
        return leases_reply(leases or await _receive(door, call, body.wait_ms))
    messages = list(map(types.message_view, await _receive_readable(door, call, leases)))
    return types.Received(messages=messages, acked=acked) if acked else types.Received(messages=messages)


async def _ack_and_receive(door: Door, call: Call[types.ReceiveRequest, None]) -> tuple[Sequence[Verdict], list[Lease]]:
    """Ack, and while that is being made safe receive what there is: both are safe at the same time.

    An ack takes effect as it is written, so what it makes room for can be received behind it. Where it was refused, or
    does not have to be waited for, nothing is received here.
    """
    body = call.body
    acking = asyncio.ensure_future(door.broker.queues.ack(body.group, body.ack, topic=call.topic))
    leases: list[Lease] = []
    try:
        await asyncio.sleep(0)
        if not acking.done():
            with contextlib.suppress(PenstockError):  # the caller tries again, once the ack is safe
                leases = await _receive(door, call, wait_ms=0)
        return await acking, leases
    except PenstockError:
        await give_back(door.broker.queues, body.group, leases)
        raise
    finally:
        acking.cancel()


async def _receive_readable(
    door: Door, call: Call[types.ReceiveRequest, None], leases: list[Lease]
) -> list[LeasedMessage]:
    """Messages one by one, of ``leases`` first; what cannot be unpacked goes to the dead letters, and is not what the
    client waits for.
    """
    clock, body = door.broker.clock, call.body
    deadline = clock.monotonic() + body.wait_ms / 1000
    while True:
        leases = leases or await _receive(door, call, max(round(1000 * (deadline - clock.monotonic())), 0))
        messages, unreadable = await unpack_beside(leases)
        await reject_unreadable(door.broker.queues, body.group, unreadable)
        if messages or not leases:
            return messages
        leases = []


async def _receive(door: Door, call: Call[types.ReceiveRequest, None], wait_ms: int) -> list[Lease]:
    """What there is; where there is nothing yet, what comes, as long as the client waits for it."""
    body, queues = call.body, door.broker.queues
    limit = _BINARY_BYTES_MAX if call.wants_binary else door.config.read_bytes_max
    wanted: dict[str, Any] = {
        "consumer": body.consumer,
        "max_messages": body.max,
        "max_bytes": min(body.max_bytes or limit, limit),
        "visibility_timeout_ms": body.visibility_timeout_ms,
        "attempt": body.attempt,
    }
    leases = await queues.receive(call.topic, body.group, **wanted)
    if leases or not wait_ms:
        return leases
    waited = queues.receive(call.topic, body.group, **wanted, wait_ms=wait_ms)
    async with Waiting(door, call, waited) as waiting:
        leases = await waiting.result()
        if leases and waiting.is_client_gone:
            await give_back(queues, body.group, leases)
    return leases


async def ack_messages(door: Door, call: Call[types.AckRequest, None]) -> types.ReceiptResults | Reply:
    """Be done with messages: they never come again. 200 if all are, 207 tells which are not."""
    body = call.body
    return _results(call, await door.broker.queues.ack(body.group, body.receipts, topic=call.topic))


async def nack_messages(door: Door, call: Call[types.NackRequest, None]) -> types.ReceiptResults | Reply:
    """Give messages back, to be delivered again after a delay; after the last try they go to the dead letters."""
    body = call.body
    verdicts = await door.broker.queues.nack(
        body.group, body.receipts, topic=call.topic, delay_ms=body.delay_ms, reason=body.reason
    )
    return _results(call, verdicts)


async def reject_messages(door: Door, call: Call[types.RejectRequest, None]) -> types.ReceiptResults | Reply:
    """Send messages to the dead letters at once."""
    body = call.body
    return _results(
        call, await door.broker.queues.reject(body.group, body.receipts, topic=call.topic, reason=body.reason)
    )


async def extend_messages(door: Door, call: Call[types.ExtendLeaseRequest, None]) -> types.ReceiptResults | Reply:
    """Hold messages for so long from now on."""
    body = call.body
    verdicts = await door.broker.queues.extend(
        body.group, body.receipts, topic=call.topic, visibility_timeout_ms=body.visibility_timeout_ms
    )
    return _results(call, verdicts)


async def release_messages(door: Door, call: Call[types.AckRequest, None]) -> types.ReceiptResults | Reply:
    """Give back messages that nobody worked on: they are delivered at once, and this time did not count as a try."""
    body = call.body
    return _results(call, await door.broker.queues.release(body.group, body.receipts, topic=call.topic))


# -- the same by group, for receipts of any topics ---------------------------------------------------------------------


async def ack_group(door: Door, call: Call[types.GroupAckRequest, None]) -> types.ReceiptResults | Reply:
    """Be done with messages of a queue group, of any topics."""
    return _results(call, await door.broker.queues.ack(group_of(call), call.body.receipts))


async def nack_group(door: Door, call: Call[types.GroupNackRequest, None]) -> types.ReceiptResults | Reply:
    """Give back messages of a queue group, of any topics."""
    body = call.body
    verdicts = await door.broker.queues.nack(group_of(call), body.receipts, delay_ms=body.delay_ms, reason=body.reason)
    return _results(call, verdicts)


async def reject_group(door: Door, call: Call[types.GroupRejectRequest, None]) -> types.ReceiptResults | Reply:
    """Send messages of a queue group, of any topics, to the dead letters."""
    return _results(call, await door.broker.queues.reject(group_of(call), call.body.receipts, reason=call.body.reason))


async def extend_group(door: Door, call: Call[types.GroupExtendRequest, None]) -> types.ReceiptResults | Reply:
    """Hold messages of a queue group, of any topics, for so long from now on."""
    body = call.body
    verdicts = await door.broker.queues.extend(
        group_of(call), body.receipts, visibility_timeout_ms=body.visibility_timeout_ms
    )
    return _results(call, verdicts)


async def release_group(door: Door, call: Call[types.GroupAckRequest, None]) -> types.ReceiptResults | Reply:
    """Give back messages of a queue group that nobody worked on, of any topics; it does not count as a try."""
    return _results(call, await door.broker.queues.release(group_of(call), call.body.receipts))


def _results(call: Call[Any, Any], verdicts: Sequence[Verdict]) -> types.ReceiptResults | Reply:
    """200 when everything was done, 207 when something was not; the first error where nothing could be told."""
    raise_if_unanswered(verdicts)
    results = types.ReceiptResults(results=types.results_of(verdicts, call.path))
    return results if all(map(types.is_done, verdicts)) else reply(results, _PARTLY)


def raise_if_unanswered(verdicts: Sequence[Verdict]) -> None:
    """Raise the first error if there is one for every receipt: then nothing is known of any of them."""
    errors = [verdict.error for verdict in verdicts if verdict.error is not None]
    if errors and len(errors) == len(verdicts):
        raise errors[0]


# -- groups ------------------------------------------------------------------------------------------------------------


async def list_queues(door: Door, _call: Call[None, None]) -> QueueList:
    """Every topic that is read as a queue, and its queue groups."""
    names = [
        name.removeprefix(QUEUE_STATE_PREFIX)
        for name in sorted(door.broker.metadata.topics)
        if name.startswith(QUEUE_STATE_PREFIX)
    ]
    groups = await asyncio.gather(*(door.broker.queues.groups(name) for name in names))
    return QueueList(queues=[QueueSummary(topic=name, groups=found) for name, found in zip(names, groups, strict=True)])


async def describe_queue(door: Door, call: Call[None, None]) -> QueueView:
    """A topic's queue groups: what is ready, in flight and waiting, by group and partition and in all."""
    stats = await door.broker.queues.stats(call.topic)
    now_ms = door.broker.clock.now_ms()
    groups = [group_view(each, now_ms) for each in sorted(stats, key=lambda each: each.group)]
    return queue_view(call.topic, groups, await still_dead(door.broker, call.topic))


async def purge_queue(door: Door, call: Call[types.PurgeRequest, None]) -> QueueGroupView:
    """Be done with everything that is in the topic now, for one group."""
    await door.broker.queues.purge(call.topic, call.body.group)
    return await _show(door, call.topic, call.body.group)


async def describe_queue_group(door: Door, call: Call[None, None]) -> QueueGroupView:
    """One queue group of a topic."""
    return await _show(door, call.topic, group_of(call))


async def declare_queue_group(door: Door, call: Call[types.DeclareRequest, None]) -> QueueGroupView:
    """Begin a queue group, if it is not there, and give it settings of its own."""
    body, group = call.body, group_of(call)
    start = types.start_of(body.start, body.since)
    settings = {name: str(value) for name, value in body.settings.items()}
    await door.broker.queues.declare(call.topic, group, start="earliest" if start is None else start, settings=settings)
    return await _show(door, call.topic, group)


async def forget_queue_group(door: Door, call: Call[None, None]) -> Reply:
    """Forget a queue group and where it was."""
    await door.broker.queues.forget(call.topic, group_of(call))
    return no_content()


async def pause_queue_group(door: Door, call: Call[types.PauseRequest, None]) -> QueueGroupView:
    """Hand out nothing more; what is in flight can be acked all the same."""
    await door.broker.queues.pause(call.topic, group_of(call), call.body.reason)
    return await _show(door, call.topic, group_of(call))


async def resume_queue_group(door: Door, call: Call[None, None]) -> QueueGroupView:
    """Hand out messages again."""
    await door.broker.queues.resume(call.topic, group_of(call))
    return await _show(door, call.topic, group_of(call))


async def seek_queue_group(door: Door, call: Call[types.SeekRequest, None]) -> QueueGroupView:
    """Read on from somewhere else, as if nothing had been delivered; every lease ends."""
    start = types.start_of(call.body.to, call.body.since)
    if start is None:
        raise InvalidRequest("Give `to` (an offset, earliest or latest) or `since` (an instant).")
    await door.broker.queues.seek(call.topic, group_of(call), start)
    return await _show(door, call.topic, group_of(call))


async def peek_queue_group(door: Door, call: Call[None, types.PeekQuery]) -> types.PeekedMessages:
    """Look at the first messages that are not done; nobody receives them by that."""
    peeked = await door.broker.queues.peek(call.topic, group_of(call), max_messages=call.query.max)
    return types.PeekedMessages(messages=[types.peeked_view(call.topic, each) for each in peeked])


async def _show(door: Door, topic: str, group: str) -> QueueGroupView:
    stats = await door.broker.queues.stats(topic, group)
    if not stats:
        raise GroupNotFound(f"Topic {topic!r} has no queue group {group!r}.")
    return group_view(stats[0], door.broker.clock.now_ms())
