"""A delivery: what a queue offers is read, granted and handed out, in one go.

Where the messages are in a partition led here nothing waits between the offer and the grant. Where they have to be
fetched first, something else may have happened meanwhile: the grant leaves out what is taken, and it is tried again.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.queues.core.config import Order
from penstock.broker.queues.core.messages import Grant, Granted, Release, Trim
from penstock.broker.queues.core.queue import Queue
from penstock.broker.queues.core.receipts import Receipt
from penstock.broker.queues.leading.gathering import Gathering, read_labels
from penstock.broker.queues.leading.shard import QueueShard
from penstock.broker.queues.leading.sources import Source
from penstock.broker.queues.leases import Lease
from penstock.errors import GroupNotFound

# So often an offer may turn out to be nothing but gaps, or to be taken by others, before the caller gets its turn back.
_ROUNDS_MAX: Final = 20


async def deliver(
    shard: QueueShard,
    group: str,
    *,
    consumer: str,
    max_messages: int,
    max_bytes: int,
    visibility_timeout_ms: int | None,
) -> Lease | None:
    """Lease up to ``max_messages`` of one partition, None if there is nothing; `GroupNotFound` if it has to begin."""
    for _ in range(_ROUNDS_MAX):
        shard.check()
        queue = find_queue(shard, group)
        source = shard.source()
        start, end = await source.reach()
        if start > queue.committed:
            await shard.request(group, Trim(start))
        if queue.settings.order is Order.KEY:
            await _look_ahead(queue, source, max_messages, end)
        offered = queue.offer(consumer, max_messages, end, shard.now_ms())
        if not offered:
            return None
        gathering = Gathering(source, max_bytes)
        await gathering.take(offered)
        if not gathering.deliveries and not gathering.gaps:
            return None
        grant = Grant(
            consumer=consumer,
            offered=gathering.deliveries,
            visibility_timeout_ms=visibility_timeout_ms,
            gaps=gathering.gaps,
        )
        granted = await shard.request(group, grant, lambda unseen: take_back(shard, group, unseen))
        if granted.deliveries:
            return Lease(
                shard.topic, shard.partition, granted.nonce, granted.until_ms, granted.deliveries, gathering.batches()
            )
    return None


def take_back(shard: QueueShard, group: str, granted: Granted | Lease) -> None:
    """Whoever asked is gone: have what it never saw delivered to somebody else at once."""
    receipts = [
        Receipt(shard.topic, shard.partition, first, last, count, granted.nonce)
        for first, last, count in granted.deliveries
    ]
    if receipts and shard.is_ready and group in shard.machines:
        shard.ask(group, Release(receipts), lambda _: None)


def find_queue(shard: QueueShard, group: str) -> Queue:
    queue = shard.machines.get(group)
    if queue is None:
        raise GroupNotFound(f"No queue group {group!r} reads {shard.topic}-{shard.partition}.")
    return queue


async def _look_ahead(queue: Queue, source: Source, limit: int, end: int) -> None:
    """Tell the queue the keys that it needs to know before it can choose."""
    while (wanted := queue.unseen(limit, end)) is not None:
        labels = await read_labels(source, wanted)
        if not labels:
            return
        still = queue.unseen(limit, end)
        if still is not None and still.first == wanted.first:  # nobody else told it meanwhile
            queue.see(wanted.first, labels)
