"""What a shard needs now and then: the log's start is followed, and the companion log is kept short.

A companion needs only what comes after the oldest snapshot in use. A group that rests would hold on to a long log, so
it gets a snapshot too once the log behind its last one is much longer than that would be.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.queues.core.messages import Trim
from penstock.broker.queues.leading.shard import QueueShard
from penstock.broker.queues.leading.sources import LedSource
from penstock.broker.replicas import Replicas
from penstock.errors import PenstockError

# Cutting costs a few writes, so it is done for that many records at a time.
_TRIM_RECORDS_MIN: Final = 5_000
# A group that rests gets a snapshot when the records since are this many, and so many times its rows.
_RESTING_RECORDS: Final = 20_000
_RESTING_ROWS: Final = 4


async def follow_start(shard: QueueShard) -> None:
    """Tell queues that retention has removed messages which they still counted on."""
    source = shard.source()
    if not isinstance(source, LedSource):
        return
    start = (await source.reach()).start
    for queue in tuple(shard.machines.values()):
        if queue.committed < start and shard.is_ready:
            await shard.request(queue.id, Trim(start))


async def trim_companion(shard: QueueShard, replicas: Replicas) -> None:
    """Cut what no group needs any more off the companion log, once all that makes it needless is committed."""
    partition = shard.journal.partition
    log = partition.log
    if log.end_offset - log.start_offset < _TRIM_RECORDS_MIN:
        return
    await _move_resting(shard)
    needed = min(shard.journal.needed.values(), default=log.end_offset)
    if needed - log.start_offset < _TRIM_RECORDS_MIN:
        return
    await _settled(shard)
    async with replicas.upkeep(partition):
        if not shard.is_ready or not log.start_offset < needed <= partition.high_watermark:
            return
        await asyncio.to_thread(log.save_start, needed)
        dropped = log.trim(needed, is_saved=True)
        await asyncio.to_thread(log.delete_files, dropped)


async def _move_resting(shard: QueueShard) -> None:
    end = shard.journal.end_offset
    for queue in tuple(shard.machines.values()):
        behind = end - shard.journal.needed.get(queue.id, end)
        if behind > max(_RESTING_RECORDS, _RESTING_ROWS * queue.row_count):
            await shard.snapshot(queue)


async def _settled(shard: QueueShard) -> None:
    """Return once all that was written is committed."""
    future: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

    def done(error: PenstockError | None) -> None:
        if not future.done():
            future.set_result(error)

    shard.when_settled(done)
    error = await future
    if error is not None:
        raise error
