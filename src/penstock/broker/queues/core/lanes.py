"""Supplies that share deliveries out: between lanes of priority, between tenants, or between tenants in each lane.

To put urgent messages first, one has to know of them: so everything is looked at, up to the end, unless the intervals
become too many. Then only critical and high messages behind that are noted, by looking at what is there without
remembering the rest, until those are too many as well. Looking goes on when some are done. Nothing of this is written
anywhere: whoever takes over looks again. More: docs/explanation/lanes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final

from penstock.broker.queues.core.config import Lanes, QueueSettings
from penstock.broker.queues.core.intervals import Interval, IntervalMap, IntervalSet
from penstock.broker.queues.core.keyed import KeyedSupply
from penstock.broker.queues.core.pool import LANE_BITS, LANE_MASK, Chooses, Naming, Pool, Run
from penstock.broker.queues.core.shares import NestedShares, Shares
from penstock.priorities import NORMAL, PRIORITIES

_LOOK_AHEAD: Final = 10_000  # messages are looked at in such pieces
_INTERVALS_MAX: Final = 200_000
_SCOUTED_MAX: Final = 50_000  # more intervals, of urgent messages alone
_URGENT: Final = 1  # lanes up to this one are noted however far behind they are
_SOURCES_MAX: Final = 10_000
_SHARED_SOURCES: Final = 256
_LABEL_MASK: Final = (1 << 59) - 1
_FAIR_QUANTUM: Final = 10  # messages of one tenant in a round

# What is not done between two offsets.
Undone = Callable[[int, int], Iterable[Interval]]


class SharedSupply:
    """By source as the pool has it, and by offset within a source."""

    def __init__(
        self,
        rows: IntervalMap,
        undone: Undone,
        pool: Pool,
        *,
        can_scout: bool = False,
        intervals_max: int | None = None,
        scouted_max: int | None = None,
    ) -> None:
        self._rows = rows
        self._undone = undone
        self.pool = pool
        self._can_scout = can_scout
        self._intervals_max = _INTERVALS_MAX if intervals_max is None else intervals_max
        self._scouted_max = _SCOUTED_MAX if scouted_max is None else scouted_max
        self._seen_to = 0
        self._scouted_to = 0  # urgent messages before this are known
        self._due = IntervalSet()  # to be delivered again, but not looked at yet

    def reset(self) -> None:
        self.pool.reset()
        self._seen_to = 0
        self._scouted_to = 0
        self._due.reset()

    @property
    def known_to(self) -> int:
        """Everything before this was looked at."""
        return self._seen_to

    # -- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, limit: int, start: int, end: int) -> list[Interval]:
        return self.pool.choose(limit, start, end)

    def is_free(self, first: int, last: int) -> bool:
        return self.pool.covers(first, last)

    # -- looking ------------------------------------------------------------------------------------------------------

    def unseen(self, limit: int, start: int, end: int) -> Interval | None:  # noqa: ARG002
        begin = max(start, self._seen_to)
        if self._is_full:
            if not self._can_scout or len(self.pool) >= self._intervals_max + self._scouted_max:
                return None
            begin = max(begin, self._scouted_to)
        return Interval(begin, min(end, begin + _LOOK_AHEAD) - 1) if begin < end else None

    @property
    def _is_full(self) -> bool:
        """Whether no more is remembered but what is urgent; if nothing can be handed out, looking has to go on."""
        return len(self.pool) >= self._intervals_max and self.pool.shares.total > 0

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[Run] = ()) -> None:  # noqa: ARG002
        """Hear what was asked for by `unseen` just now; of what is beyond memory, only what is urgent is noted."""
        is_scouting = self._can_scout and self._is_full
        at = first
        for size, lane, tenant in runs:
            if not is_scouting or lane <= _URGENT:
                self._see_run(at, at + size - 1, lane, tenant)
            at += size
        self._scouted_to = max(self._scouted_to, at)
        if not is_scouting:
            assert first >= self._seen_to, "messages are looked at once, in order"
            self._seen_to = at

    def _see_run(self, first: int, last: int, lane: int, tenant: int | None) -> None:
        is_known = first < self._scouted_to  # some of it, maybe
        for piece in self._undone(first, last):
            for each in list(self.pool.sources.gaps(*piece)) if is_known else (piece,):
                self.pool.note(*each, lane, tenant)
                for gap in self._rows.gaps(*each):
                    self.pool.release(*gap)
                for low, high, _ in list(self._due.within(*each)) if self._due else ():
                    self.pool.release(low, high)
        if self._due:
            self._due.clear(first, last)

    # -- what happens to messages -------------------------------------------------------------------------------------

    def on_leased(self, first: int, last: int) -> None:
        if self._due:
            self._due.clear(first, last)
        self.pool.serve(first, last)

    def on_due(self, first: int, last: int) -> None:
        if last >= self._seen_to:
            self._due.add(max(first, self._seen_to), last)
        self.pool.release(first, last)

    def on_done(self, first: int, last: int) -> None:
        if self._due:
            self._due.clear(first, last)
        self.pool.finish(first, last)


class KeyedSharedSupply(KeyedSupply):
    """The same among the heads of keys: a message waits for those before it with its key, whatever their lanes."""

    def __init__(
        self, rows: IntervalMap, is_done: Callable[[int], bool], held_max: int, undone: Undone, pool: Pool
    ) -> None:
        self._pool = pool
        self._undone = undone
        super().__init__(rows, is_done, held_max)

    def reset(self) -> None:
        super().reset()
        self._pool.reset()

    @property
    def pool(self) -> Pool:
        return self._pool

    def choose(self, limit: int, start: int, end: int) -> list[Interval]:
        return self._pool.choose(limit, start, end)

    def is_free(self, first: int, last: int) -> bool:
        return self._pool.covers(first, last)

    def unseen(self, limit: int, start: int, end: int) -> Interval | None:  # noqa: ARG002
        begin = max(start, self._seen_to)
        is_full = len(self._pool) >= _INTERVALS_MAX and self._pool.shares.total > 0
        if begin >= end or is_full or self._held_count >= self._held_max:
            return None
        return Interval(begin, min(end, begin + _LOOK_AHEAD) - 1)

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[Run] = ()) -> None:
        at = first
        for size, lane, tenant in runs:
            for piece in self._undone(at, at + size - 1):
                self._pool.note(*piece, lane, tenant)
            at += size
        super().see(first, keys)

    def on_leased(self, first: int, last: int) -> None:
        super().on_leased(first, last)
        self._pool.serve(first, last)

    def on_done(self, first: int, last: int) -> None:
        self._pool.finish(first, last)
        super().on_done(first, last)

    def _release(self, offset: int) -> None:
        super()._release(offset)
        self._pool.release(offset, offset)


class Tenants:
    """Which labels are sources of their own, as long as they are in use. Those beyond ``most`` share some."""

    def __init__(self, most: int = _SOURCES_MAX) -> None:
        self._most = most
        self._known: set[int] = set()

    def __len__(self) -> int:
        return len(self._known)

    def source_of(self, label: int | None) -> int:
        source = 0 if label is None else label & _LABEL_MASK  # what belongs to nobody is one more tenant
        if source not in self._known:
            if len(self._known) >= self._most:
                return -1 - source % _SHARED_SOURCES
            self._known.add(source)
        return source

    def forget(self, source: int) -> None:
        self._known.discard(source)


def pool_of(settings: QueueSettings, sources_max: int = _SOURCES_MAX) -> Pool:
    """The pool for a queue that has lanes, fairness, or both."""
    weights = settings.lane_weights
    boost_ms = settings.lane_boost_ms or inf

    def fair_shares() -> Shares:
        return Shares(lambda _: _FAIR_QUANTUM, boost_ms=boost_ms)

    shares: Chooses
    if settings.lanes is Lanes.OFF:
        tenants = Tenants(sources_max)
        naming = Naming(lambda _, tenant: tenants.source_of(tenant), tenants.forget, lambda _: NORMAL)
        return Pool(fair_shares(), naming)
    lanes = Shares(weights.__getitem__, is_ranked=True, boost_ms=boost_ms)
    if not settings.fair_by:
        return Pool(lanes, Naming(lambda lane, _: lane, lambda _: None, lambda source: source), is_aligned=True)
    in_lanes = [Tenants(sources_max) for _ in PRIORITIES]
    shares = NestedShares(lanes, [fair_shares() for _ in PRIORITIES], LANE_BITS)
    naming = Naming(
        lambda lane, tenant: in_lanes[lane].source_of(tenant) << LANE_BITS | lane,
        lambda source: in_lanes[source & LANE_MASK].forget(source >> LANE_BITS),
        lambda source: source & LANE_MASK,
    )
    return Pool(shares, naming)
