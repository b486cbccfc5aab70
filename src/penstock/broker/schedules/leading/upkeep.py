"""The log of a shard is kept short: what its beginning still has to tell is written anew at its end, then it is cut.

Only what is before the anchor can go. A schedule that waits for long is written again each time the log has grown to a
few times of what it needs to be, so that costs a fraction of what writing costs anyway.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from penstock.broker.replicas import Replicas
from penstock.broker.schedules.leading.shard import ScheduleShard
from penstock.broker.schedules.messages import Carry
from penstock.broker.schedules.records import Put

_RECORDS_MIN: Final = 50_000  # a log that is shorter is left alone
_TIMES_LIVE: Final = 4
_CARRIED_AT_ONCE: Final = 200
_PIECE: Final = 5_000
_PIECES_AT_ONCE: Final = 10


async def keep_short(shard: ScheduleShard, replicas: Replicas) -> None:
    """Cut the beginning off a log that is several times as long as it need be, a piece at a time."""
    for _ in range(_PIECES_AT_ONCE):
        if not shard.is_ready or not _is_long(shard):
            return
        start = shard.journal.partition.log.start_offset
        end = min(start + _PIECE, shard.journal.anchor)
        if end <= start or not await carry(shard, start, end):
            return
        await cut(shard, end, replicas)


def _is_long(shard: ScheduleShard) -> bool:
    log = shard.journal.partition.log
    return log.end_offset - log.start_offset > max(_RECORDS_MIN, _TIMES_LIVE * shard.machine.live)


async def carry(shard: ScheduleShard, begin: int, end: int) -> bool:
    """Write anew what is needed of a part of the log; False if not all of it can be now."""
    machine = shard.machine
    events = shard.journal.events(begin, end)
    while piece := list(islice(events, _CARRIED_AT_ONCE)):
        needed = [
            (offset, event.schedule)
            for offset, event in piece
            if isinstance(event, Put) and machine.is_live(event.schedule.id, offset)
        ]
        left: int = await shard.request(Carry(needed)) if needed else 0
        if left:
            return False
        await asyncio.sleep(0)
        if not shard.is_ready or shard.machine is not machine:
            return False
    return True


async def cut(shard: ScheduleShard, end: int, replicas: Replicas) -> None:
    """Cut the log, once all that makes its beginning needless is committed."""
    await shard.settled()
    partition = shard.journal.partition
    log = partition.log
    async with replicas.upkeep(partition):
        if not shard.is_ready or not log.start_offset < end <= min(partition.high_watermark, shard.journal.anchor):
            return
        await asyncio.to_thread(log.save_start, end)
        dropped = log.trim(end, is_saved=True)
        await asyncio.to_thread(log.delete_files, dropped)
