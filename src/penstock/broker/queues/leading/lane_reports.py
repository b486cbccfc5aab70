"""What can be told of the lanes of a queue: from the pool and the rows, and when the oldest message was written."""

from __future__ import annotations

from itertools import islice
from typing import Final

from penstock.broker.queues.core.config import Lanes
from penstock.broker.queues.core.pool import Pool
from penstock.broker.queues.core.queue import Queue
from penstock.broker.queues.core.rows import LEASED
from penstock.broker.queues.leading.sources import Source
from penstock.broker.queues.reports import LaneStats
from penstock.priorities import PRIORITIES

# Messages in flight are counted row by row, so of very many rows only the first ones are.
_ROWS_MAX: Final = 50_000


async def lanes_of(queue: Queue, source: Source, now_ms: int) -> tuple[LaneStats, ...]:
    """A row for each lane, the most urgent first; none where the group has no lanes."""
    pool = queue.supply.pool
    if pool is None or queue.settings.lanes is Lanes.OFF:
        return ()
    ready = [0] * len(PRIORITIES)
    first: list[int | None] = [None] * len(PRIORITIES)
    for lane, amount, offset in pool.free_intervals():
        ready[lane] += amount
        oldest = first[lane]
        first[lane] = offset if oldest is None else min(oldest, offset)
    in_flight = _in_flight(queue, pool)
    found: list[LaneStats] = []
    for lane, name in enumerate(PRIORITIES):
        pace, oldest = pool.paces.get(lane), first[lane]
        found.append(
            LaneStats(
                lane=name,
                ready=ready[lane],
                in_flight=in_flight[lane],
                served=0 if pace is None else pace.total,
                served_per_second=0.0 if pace is None else round(pace.per_second(now_ms), 3),
                last_served_ms=None if pace is None else pace.last_ms,
                oldest_ms=None if oldest is None else await source.written_ms(oldest),
            )
        )
    return tuple(found)


def unseen_of(queue: Queue, end: int) -> int:
    """How many messages nobody has looked at."""
    if queue.supply.pool is None:
        return 0
    return max(0, end - max(queue.supply.known_to, queue.committed))


def _in_flight(queue: Queue, pool: Pool) -> list[int]:
    counts = [0] * len(PRIORITIES)
    leased = (row for row in queue.rows_from(queue.committed, _END) if row.kind == LEASED)
    for row in islice(leased, _ROWS_MAX):
        for low, high, facts in pool.sources.within(row.first, row.last):
            counts[pool.naming.lane_of(facts[0])] += high - low + 1
    return counts


_END: Final = (1 << 63) - 1
