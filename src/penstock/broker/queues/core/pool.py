"""The pool: what can be handed out of each source, as intervals, and who is served next.

A source is a lane, a tenant, or a tenant in a lane. The pool knows the source of everything that was looked at and is
not done, and which of that is free. A lane with a million neighbours costs one row, and messages of one priority that
came in one batch are one interval.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from penstock.broker.queues.core.intervals import Interval, IntervalMap, IntervalSet
from penstock.broker.queues.core.pace import Pace
from penstock.broker.queues.core.shares import Served

LANE_BITS: Final = 3  # the lowest bits of a source that is a tenant in a lane; there are five lanes
LANE_MASK: Final = (1 << LANE_BITS) - 1
_ALIGNED_FROM: Final = 64  # messages at once


class Chooses(Protocol):
    """Who is served next; `Shares`, or shares within shares."""

    @property
    def total(self) -> int: ...
    def begin(self, now_ms: int) -> None: ...
    def amount_of(self, source: int) -> int: ...
    def add(self, source: int, amount: int, now_ms: int) -> None: ...
    def take(self, source: int, amount: int) -> None: ...
    def serve(self, source: int, amount: int, now_ms: int) -> None: ...
    def is_boosted(self, source: int, now_ms: int) -> bool: ...
    def plan(self, limit: int, now_ms: int) -> list[Served]: ...


class Run(NamedTuple):
    """Neighbours that are labelled alike: how many, their lane, and a hash of whom they belong to."""

    size: int
    lane: int
    tenant: int | None = None


class Naming(NamedTuple):
    """The source that a label stands for, what to do when one has nothing any more, and the lane of one."""

    source_of: Callable[[int, int | None], int]  # by lane and tenant
    forget: Callable[[int], None]
    lane_of: Callable[[int], int]


class Pool:
    """Intervals by source. Whatever is told of offsets that nobody looked at is not heard."""

    def __init__(self, shares: Chooses, naming: Naming, *, is_aligned: bool = False) -> None:
        self.shares = shares
        self._is_aligned = is_aligned
        self.naming = naming
        self.now_ms = 0
        self.sources = IntervalMap("q")  # of all that was looked at and is not done
        self._known: dict[int, int] = {}  # how many messages of each source that is
        self._free: dict[int, IntervalSet] = {}  # by source, what can be handed out
        self.paces: dict[int, Pace] = {}  # by lane, what was served

    def __len__(self) -> int:
        """What memory grows with: intervals."""
        return len(self.sources)

    def reset(self) -> None:
        for source in list(self._free):
            self.shares.take(source, self.shares.amount_of(source))
        for source in list(self._known):
            self.naming.forget(source)
        self.sources.reset()
        self._known.clear()
        self._free.clear()

    def pass_time(self, now_ms: int) -> None:
        if not self.now_ms:  # what was looked at before anybody knew the time has waited since now
            self.shares.begin(now_ms)
        self.now_ms = max(self.now_ms, now_ms)

    # -- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, limit: int, start: int, end: int) -> list[Interval]:
        """By source as the shares have it, and by offset within a source; nothing changes by it."""
        planned = self.shares.plan(limit, self.now_ms)
        if self._is_aligned and limit >= _ALIGNED_FROM and len(planned) > 1:
            planned = self._aligned(planned, start, end)
        chosen: list[Interval] = []
        for source, amount in planned:
            left = amount
            for first, last, _ in self._free[source].within(start, end - 1):
                if left <= 0:
                    break
                chosen.append(Interval(first, min(last, first + left - 1)))
                left -= chosen[-1].size
        return chosen

    def _aligned(self, planned: list[Served], start: int, end: int) -> list[Served]:
        """As much, but in whole intervals where many are taken at once: a bit of each batch costs as much as all of it.

        Each source gets what is nearest to its plan. Who gets less has credit, who gets more has debt, so the next
        plans make up for it. A source that waited too long gets what was planned.
        """
        left = sum(amount for _, amount in planned)
        taken: dict[int, int] = {}
        for source, amount in planned:
            if left <= 0:
                break
            if self.shares.is_boosted(source, self.now_ms):
                whole = min(amount, left)
            else:
                whole = self._nearest(source, amount, left, start, end)
            if whole:
                taken[source] = whole
                left -= whole
        for source in [*taken, *(source for source, _ in planned)]:  # what is left goes on with those that have begun
            more = min(left, self.shares.amount_of(source) - taken.get(source, 0))
            if more > 0:
                taken[source] = taken.get(source, 0) + more
                left -= more
        return [Served(source, amount) for source, amount in taken.items()]

    def _nearest(self, source: int, amount: int, most: int, start: int, end: int) -> int:
        """Where an interval ends, at most ``most`` messages away and as near as can be to ``amount``."""
        before = 0
        for first, last, _ in self._free[source].within(start, end - 1):
            after = min(before + last - first + 1, most)
            if after >= amount:
                return after if 2 * amount >= before + after else before
            before = after
        return before

    def covers(self, first: int, last: int) -> bool:
        """Whether all of an interval is free, and of one source."""
        row = self.sources.at(first)
        if row is None or row[2][0] not in self._free:
            return False
        return self._free[row[2][0]].covers(first, last)

    def lane_at(self, offset: int) -> int | None:
        """The lane of what was looked at and is not done."""
        row = self.sources.at(offset)
        return None if row is None else self.naming.lane_of(row[2][0])

    def next_lane(self) -> int | None:
        """Whose turn it is; None if there is nothing."""
        planned = self.shares.plan(1, self.now_ms)
        return self.naming.lane_of(planned[0].source) if planned else None

    def free_intervals(self) -> list[tuple[int, int, int]]:
        """For each source with something free: its lane, how much that is, and the first of it."""
        return [
            (self.naming.lane_of(source), self.shares.amount_of(source), next(iter(free))[0])
            for source, free in self._free.items()
        ]

    # -- what happens -------------------------------------------------------------------------------------------------

    def note(self, first: int, last: int, lane: int, tenant: int | None) -> None:
        """Messages were looked at that are not done."""
        source = self.naming.source_of(lane, tenant)
        self.sources.put(first, last, (source,))
        self._known[source] = self._known.get(source, 0) + last - first + 1

    def release(self, first: int, last: int) -> None:
        """Messages can be handed out, as far as they are known and could not before."""
        for source, piece in self._pieces(first, last):
            free = self._free.get(source)
            if free is None:
                free = self._free[source] = IntervalSet()
            for gap in list(free.gaps(*piece)):
                free.add(*gap)
                self.shares.add(source, gap.size, self.now_ms)

    def serve(self, first: int, last: int) -> None:
        """Messages were handed out."""
        for source, piece in self._pieces(first, last):
            taken = self._seize(source, piece)
            if taken:
                self.shares.serve(source, taken, self.now_ms)
                self._drop_empty(source)
                lane = self.naming.lane_of(source)
                if lane not in self.paces:
                    self.paces[lane] = Pace()
                self.paces[lane].count(taken, self.now_ms)

    def finish(self, first: int, last: int) -> None:
        """Messages are done with."""
        for source, piece in self._pieces(first, last):
            taken = self._seize(source, piece)
            if taken:
                self.shares.take(source, taken)
                self._drop_empty(source)
            self._known[source] -= piece.size
            if not self._known[source]:
                del self._known[source]
                self.naming.forget(source)
        self.sources.clear(first, last)

    def _pieces(self, first: int, last: int) -> list[tuple[int, Interval]]:
        """What was looked at between two offsets, by source."""
        row = self.sources.at(first)
        if row is not None and row[1] >= last:  # as it is nearly always
            return [(row[2][0], Interval(first, last))]
        return [(facts[0], Interval(low, high)) for low, high, facts in self.sources.within(first, last)]

    def _seize(self, source: int, piece: Interval) -> int:
        """Make an interval free no more; how many messages of it were."""
        free = self._free.get(source)
        if free is None:
            return 0
        row = free.at(piece.first)
        if row is not None and row[1] >= piece.last:
            taken = piece.size
        else:
            taken = sum(high - low + 1 for low, high, _ in free.within(*piece))
        if taken:
            free.clear(*piece)
        return taken

    def _drop_empty(self, source: int) -> None:
        if not self.shares.amount_of(source):
            del self._free[source]
