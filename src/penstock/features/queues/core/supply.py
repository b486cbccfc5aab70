"""The choice of what a queue hands out next, behind one small interface.

A supply keeps nothing that must survive: it is told what happens to messages and could be built anew from that at any
time. What is due to be delivered again goes first, then what was never delivered, both by offset.

The supply that keeps the order of each key: one message of a key at a time, the next when it is done.

The shell tells the key of each message, as a hash, in the order of offsets and only as far ahead as it is asked to.
The oldest message of a key that is not done is the key's *head*; the others are held. So a message that fails holds
back its own key alone. Nothing of this is written anywhere: the next leader looks again, from the first message that
is not done, and hands out nothing that it has not looked at.

Supplies that share deliveries out: between lanes of priority, between tenants, or between tenants in each lane.

To put urgent messages first, one has to know of them: so everything is looked at, up to the end, unless the intervals
become too many. Then only critical and high messages behind that are noted, by looking at what is there without
remembering the rest, until those are too many as well. Looking goes on when some are done. Nothing of this is written
anywhere: the next leader looks again. More: docs/explanation/lanes.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Final, Protocol

from penstock.consensus.queue_config import Lanes, QueueSettings
from penstock.features.queues.core.intervals import Interval, IntervalMap, IntervalSet
from penstock.features.queues.core.shares import (
    LANE_BITS,
    LANE_MASK,
    LabelPool,
    LabelRun,
    NestedShares,
    Shares,
    SourceChooser,
    SourceNaming,
)
from penstock.priorities import NORMAL, PRIORITIES


class Supply(Protocol):
    """Chooses among the messages that are free: those which no row tells of, and those which became due."""

    def choose(self, limit: int, start: int, end: int) -> list[Interval]:
        """What to hand out now, the best first: up to ``limit`` messages from ``start`` to before ``end``."""

    def is_free(self, first: int, last: int) -> bool:
        """Whether all of an interval may be handed out now."""

    def unseen(self, limit: int, start: int, end: int) -> Interval | None:
        """What to look at before ``limit`` messages can be chosen; None if that is known, or never needed."""

    @property
    def pool(self) -> LabelPool | None:
        """The sources that it shares deliveries out to, if it does."""

    @property
    def known_to(self) -> int:
        """Everything before this was looked at, where that is needed."""

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[LabelRun] = ()) -> None:
        """Hear the keys of messages from ``first`` on, and their labels; each only where the settings need it."""

    def on_leased(self, first: int, last: int) -> None:
        """Messages were handed out."""

    def on_due(self, first: int, last: int) -> None:
        """Messages are to be delivered again, from now on."""

    def on_done(self, first: int, last: int) -> None:
        """Messages are done with: acked, dead or gone. The rows tell so already."""

    def reset(self) -> None:
        """Forget everything; nothing was handed out, nothing is due."""


class PlainSupply:
    """By offset alone."""

    pool = None
    known_to = 0

    def __init__(self, rows: IntervalMap) -> None:
        self._rows = rows
        self._due = IntervalSet()
        self._fresh_from = 0  # nothing before this was never delivered

    def choose(self, limit: int, start: int, end: int) -> list[Interval]:
        chosen: list[Interval] = []
        for first, last, _ in self._due.within(start, end - 1) if self._due else ():
            if limit <= 0:
                break
            chosen.append(Interval(first, min(last, first + limit - 1)))
            limit -= chosen[-1].size
        is_first = True
        for gap in self._rows.gaps(max(start, self._fresh_from), end - 1) if limit > 0 else ():
            if is_first:
                self._fresh_from = gap.first
                is_first = False
            chosen.append(Interval(gap.first, min(gap.last, gap.first + limit - 1)))
            limit -= chosen[-1].size
            if limit <= 0:
                break
        return chosen

    def is_free(self, first: int, last: int) -> bool:
        return not self._rows.has_any(first, last) or self._due.covers(first, last)

    def unseen(self, limit: int, start: int, end: int) -> Interval | None:  # noqa: ARG002
        return None

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[LabelRun] = ()) -> None:
        """Labels make no difference here."""

    def on_leased(self, first: int, last: int) -> None:
        if self._due:
            self._due.clear(first, last)

    def on_due(self, first: int, last: int) -> None:
        self._due.add(first, last)

    def on_done(self, first: int, last: int) -> None:
        if self._due:
            self._due.clear(first, last)

    def reset(self) -> None:
        self._due.reset()
        self._fresh_from = 0


_LOOK_AHEAD_MIN: Final = 500  # messages come in batches, so looking at a few costs as much as looking at many


class KeyedSupply:
    """By offset among the heads of keys. ``rows`` tell what was said of messages, ``held_max`` how many to remember."""

    def __init__(self, rows: IntervalMap, is_done: Callable[[int], bool], held_max: int) -> None:
        self._rows = rows
        self._is_done = is_done
        self._held_max = held_max
        self.reset()

    def reset(self) -> None:
        self._seen_to = 0  # looked at up to here, from where the group stood
        self._keys: set[int] = set()  # that have a head; only ever asked for one of them
        self._heads = IntervalMap("q")  # a row each, with its key: a dict of these would take four times as much
        self._held: dict[int, deque[int]] = {}  # by key, where anything is
        self._held_count = 0
        self._due = IntervalSet()
        self._free = IntervalSet()  # heads that are not in flight
        self._free_count = 0

    # -- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, limit: int, start: int, end: int) -> list[Interval]:
        chosen: list[Interval] = []
        for first, last in self._candidates(start, end - 1):
            if limit <= 0:
                break
            chosen.append(Interval(first, min(last, first + limit - 1)))
            limit -= chosen[-1].size
        return chosen

    def _candidates(self, start: int, last: int) -> Iterator[tuple[int, int]]:
        if self._due:
            for low, high, _ in self._free.within(start, last):
                yield from ((again[0], again[1]) for again in self._due.within(low, high))
        for low, high, _ in self._free.within(start, last):
            yield from self._due.gaps(low, high)

    def is_free(self, first: int, last: int) -> bool:
        return self._free.covers(first, last)

    # -- looking ------------------------------------------------------------------------------------------------------

    def unseen(self, limit: int, start: int, end: int) -> Interval | None:
        begin = max(start, self._seen_to)
        if begin >= end or self._free_count >= limit or self._held_count >= self._held_max:
            return None
        return Interval(begin, min(end, begin + max(limit - self._free_count, _LOOK_AHEAD_MIN)) - 1)

    @property
    def pool(self) -> LabelPool | None:
        return None

    @property
    def known_to(self) -> int:
        return self._seen_to

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[LabelRun] = ()) -> None:  # noqa: ARG002
        assert first >= self._seen_to, "messages are looked at once, in order"
        for offset, label in enumerate(keys, first):
            if self._is_done(offset):
                continue
            # A message without a key waits for no other: it gets a key of its own, which no hash is.
            key = ~offset if label is None else label
            if key not in self._keys:
                self._lead(key, offset)
                continue
            if key not in self._held:
                self._held[key] = deque()
            self._held[key].append(offset)
            self._held_count += 1
        self._seen_to = first + len(keys)

    def _lead(self, key: int, offset: int) -> None:
        self._keys.add(key)
        self._heads.put(offset, offset, (key,))
        if self._rows.at(offset) is None or self._due.covers(offset, offset):
            self._release(offset)

    # -- what happens to messages -------------------------------------------------------------------------------------

    def on_leased(self, first: int, last: int) -> None:
        self._take(first, last)

    def on_due(self, first: int, last: int) -> None:
        self._due.add(first, last)
        for offset, _, _ in list(self._heads.within(first, last)):
            self._release(offset)

    def on_done(self, first: int, last: int) -> None:
        self._take(first, last)
        ended = [key for _, _, (key,) in self._heads.within(first, last)]
        self._heads.clear(first, last)
        for key in ended:
            self._keys.discard(key)
            self._promote(key)

    def _promote(self, key: int) -> None:
        """Let the next message of a key lead, if there is one."""
        held = self._held.get(key)
        while held:
            offset = held.popleft()
            self._held_count -= 1
            if not self._is_done(offset):
                self._lead(key, offset)
                break
        if held is not None and not held:
            del self._held[key]

    def _release(self, offset: int) -> None:
        if not self._free.covers(offset, offset):
            self._free.add(offset, offset)
            self._free_count += 1

    def _take(self, first: int, last: int) -> None:
        self._due.clear(first, last)
        self._free_count -= sum(high - low + 1 for low, high, _ in self._free.within(first, last))
        self._free.clear(first, last)


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
        pool: LabelPool,
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

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[LabelRun] = ()) -> None:  # noqa: ARG002
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
        self, rows: IntervalMap, is_done: Callable[[int], bool], held_max: int, undone: Undone, pool: LabelPool
    ) -> None:
        self._pool = pool
        self._undone = undone
        super().__init__(rows, is_done, held_max)

    def reset(self) -> None:
        super().reset()
        self._pool.reset()

    @property
    def pool(self) -> LabelPool:
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

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[LabelRun] = ()) -> None:
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
        source = 0 if label is None else label & _LABEL_MASK  # what belongs to no tenant is one more
        if source not in self._known:
            if len(self._known) >= self._most:
                return -1 - source % _SHARED_SOURCES
            self._known.add(source)
        return source

    def forget(self, source: int) -> None:
        self._known.discard(source)


def pool_of(settings: QueueSettings, sources_max: int = _SOURCES_MAX) -> LabelPool:
    """The pool for a queue that has lanes, fairness, or both."""
    weights = settings.lane_weights
    boost_ms = settings.lane_boost_ms or inf

    def fair_shares() -> Shares:
        return Shares(lambda _: _FAIR_QUANTUM, boost_ms=boost_ms)

    shares: SourceChooser
    if settings.lanes is Lanes.OFF:
        tenants = Tenants(sources_max)
        naming = SourceNaming(lambda _, tenant: tenants.source_of(tenant), tenants.forget, lambda _: NORMAL)
        return LabelPool(fair_shares(), naming)
    lanes = Shares(weights.__getitem__, is_ranked=True, boost_ms=boost_ms)
    if not settings.fair_by:
        return LabelPool(
            lanes, SourceNaming(lambda lane, _: lane, lambda _: None, lambda source: source), is_aligned=True
        )
    in_lanes = [Tenants(sources_max) for _ in PRIORITIES]
    shares = NestedShares(lanes, [fair_shares() for _ in PRIORITIES], LANE_BITS)
    naming = SourceNaming(
        lambda lane, tenant: in_lanes[lane].source_of(tenant) << LANE_BITS | lane,
        lambda source: in_lanes[source & LANE_MASK].forget(source >> LANE_BITS),
        lambda source: source & LANE_MASK,
    )
    return LabelPool(shares, naming)
