"""A delivery: what a queue offers is read, granted and handed out, in one go.

Where the messages are in a partition led here nothing waits between the offer and the grant. Where they have to be
fetched first, something else may have happened meanwhile: the grant leaves out what is taken, and it is tried again.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.queues.core.messages import Grant, Granted, Offered, Release, Trim
from penstock.broker.queues.core.queue import Queue
from penstock.broker.queues.core.receipts import Receipt
from penstock.broker.queues.leading.gathering import Gathering
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
) -> list[Lease]:
    """Lease up to ``max_messages`` of one partition, the most urgent first; `GroupNotFound` if it has to begin.

    Messages of one lane are a lease, so where there are no lanes there is one at most.
    """
    for _ in range(_ROUNDS_MAX):
        shard.check()
        queue = find_queue(shard, group)
        source = shard.source()
        start, end = await source.reach()
        if start > queue.committed:
            await shard.request(group, Trim(start))
        await shard.lookout.look(shard, queue, source, max_messages, end)
        offered = queue.offer(consumer, max_messages, end, shard.now_ms())
        if not offered:
            return []
        gatherings = await _gather(source, _by_lane(queue, offered), max_bytes)
        deliveries = [each for gathering in gatherings for each in gathering.deliveries]
        gaps = [gap for gathering in gatherings for gap in gathering.gaps]
        if not deliveries and not gaps:
            return []
        grant = Grant(consumer=consumer, offered=deliveries, visibility_timeout_ms=visibility_timeout_ms, gaps=gaps)
        granted = await shard.request(group, grant, lambda unseen: take_back(shard, group, unseen))
        if granted.deliveries:
            return _leases(shard, granted, gatherings)
    return []


def _by_lane(queue: Queue, offered: list[Offered]) -> list[list[Offered]]:
    """What is offered, lane by lane, in the order in which the lanes are to be served."""
    pool = queue.supply.pool
    if pool is None:
        return [offered]
    by_lane: dict[int | None, list[Offered]] = {}
    for each in offered:
        by_lane.setdefault(pool.lane_at(each.first), []).append(each)
    return list(by_lane.values())


async def _gather(source: Source, parts: list[list[Offered]], max_bytes: int) -> list[Gathering]:
    """The messages of each part, as far as the bytes allow; of the first one at least a message."""
    gatherings: list[Gathering] = []
    for part in parts:
        if max_bytes <= 0:
            break
        gathering = Gathering(source, max_bytes)
        await gathering.take(part)
        gatherings.append(gathering)
        if len(parts) > 1:
            max_bytes -= len(gathering.batches())
    return gatherings


def _leases(shard: QueueShard, granted: Granted, gatherings: list[Gathering]) -> list[Lease]:
    """What was granted, with the batches that hold it."""
    if len(gatherings) == 1:
        parts = [granted.deliveries]
    else:
        part_of = {each.first: at for at, gathering in enumerate(gatherings) for each in gathering.deliveries}
        parts = [
            tuple(each for each in granted.deliveries if part_of[each.first] == at) for at in range(len(gatherings))
        ]
    return [
        Lease(shard.topic, shard.partition, granted.nonce, granted.until_ms, part, gathering.batches())
        for part, gathering in zip(parts, gatherings, strict=True)
        if part
    ]


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
