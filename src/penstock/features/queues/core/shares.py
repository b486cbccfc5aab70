"""The pace of something: how much there was of it in all, lately, and when the last was.

Deficit round robin: who is served next, and how much, so that everybody gets a share by weight.

In each round every source that has something gets its weight as credit, and is served as long as it has credit. What
was served is charged when it really was, not when it was planned, so a plan that is not taken costs nothing. A source
that goes without service for ``boost_ms`` although it has something is *boosted*: it comes before all others, once, and
pays for that later. A source that has nothing saves no credit up.

Ranked sources are few. They are served by rank in each round, the lowest number first, and one that comes in the middle
of a round gets what is left of its credit for that round. Others may be many. They are served in the order in which
they came, and a newcomer waits for the next round: so a crowd of newcomers cannot keep a round from ending.

The pool: what can be handed out of each source, as intervals, and who is served next.

A source is a lane, a tenant, or a tenant in a lane. The pool knows the source of everything that was looked at and is
not done, and which of that is free. A lane with a million neighbours costs one row, and messages of one priority that
came in one batch are one interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from penstock.features.queues.core.intervals import Interval, IntervalMap, IntervalSet

_WINDOW_MS: Final = 10_000


class ServiceRate:
    """Counts by windows of ten seconds; the rate is that of the window before, fading into this one."""

    __slots__ = ("_before", "_now", "_window", "last_ms", "total")

    def __init__(self) -> None:
        self.total = 0
        self.last_ms = 0
        self._window = 0
        self._now = 0
        self._before = 0

    def count(self, amount: int, now_ms: int) -> None:
        self._turn(now_ms)
        self.total += amount
        self.last_ms = now_ms
        self._now += amount

    def per_second(self, now_ms: int) -> float:
        """Over about the last ten seconds."""
        self._turn(now_ms)
        left = 1 - (now_ms - self._window * _WINDOW_MS) / _WINDOW_MS
        return (self._now + self._before * min(max(left, 0.0), 1.0)) * 1000 / _WINDOW_MS

    def _turn(self, now_ms: int) -> None:
        window = now_ms // _WINDOW_MS
        if window > self._window:
            self._before = self._now if window == self._window + 1 else 0
            self._now = 0
            self._window = window


DEFAULT_BOOST_MS: Final = 30_000


class PlannedService(NamedTuple):
    """So much is to be served to a source."""

    source: int
    amount: int


class Shares:
    """Sources by number. ``weight_of`` is the credit that one gets in each round, at least 1."""

    def __init__(
        self, weight_of: Callable[[int], int], *, is_ranked: bool = False, boost_ms: float = DEFAULT_BOOST_MS
    ) -> None:
        self._weight_of = weight_of
        self._is_ranked = is_ranked
        self._boost_ms = boost_ms
        self._amounts: dict[int, int] = {}  # of those that have something, in the order in which they came
        self._credits: dict[int, int] = {}  # of the same
        self._since_ms: dict[int, int] = {}  # when each was served last or came; the longest ago first
        self._rich: dict[int, None] = {}  # those with credit
        self._left: dict[int, int] = {}  # the credit of ranked ones that have nothing any more, in this round
        self.total = 0

    def __len__(self) -> int:
        return len(self._amounts)

    def amount_of(self, source: int) -> int:
        return self._amounts.get(source, 0)

    # -- what happens -------------------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        """Whatever there is came now."""
        self._since_ms = dict.fromkeys(self._since_ms, now_ms)

    def add(self, source: int, amount: int, now_ms: int) -> None:
        """A source has more."""
        self.total += amount
        if source in self._amounts:
            self._amounts[source] += amount
            return
        self._amounts[source] = amount
        self._since_ms[source] = now_ms
        self._credit(source, self._left.pop(source, self._weight_of(source)) if self._is_ranked else 0)
        self._renew()

    def take(self, source: int, amount: int) -> None:
        """A source has less, though it was not served."""
        self.total -= amount
        left = self._amounts[source] - amount
        assert left >= 0, "it never had so much"
        if left:
            self._amounts[source] = left
            return
        if self._is_ranked:
            self._left[source] = self._credits[source]
        del self._amounts[source], self._credits[source], self._since_ms[source]
        self._rich.pop(source, None)
        self._renew()

    def serve(self, source: int, amount: int, now_ms: int) -> None:
        """A source was served."""
        del self._since_ms[source]
        self._since_ms[source] = now_ms
        self._credit(source, self._credits[source] - amount)
        self.take(source, amount)
        self._renew()

    def _credit(self, source: int, credit: int) -> None:
        self._credits[source] = credit
        if credit > 0:
            self._rich[source] = None
        else:
            self._rich.pop(source, None)

    def _renew(self) -> None:
        """Begin another round if no source has credit; several at once if all are deep in debt."""
        if self._rich or not self._amounts:
            return
        self._left.clear()
        rounds = min(-credit // self._weight_of(source) + 1 for source, credit in self._credits.items())
        for source, credit in list(self._credits.items()):
            self._credit(source, credit + rounds * self._weight_of(source))

    # -- planning -----------------------------------------------------------------------------------------------------

    def is_boosted(self, source: int, now_ms: int) -> bool:
        """Whether a source has waited too long."""
        return source in self._since_ms and now_ms - self._since_ms[source] >= self._boost_ms

    def plan(self, limit: int, now_ms: int) -> list[PlannedService]:
        """Whom to serve now, in order: up to ``limit``, and less only if there is not more. Nothing changes by it."""
        planned: dict[int, int] = {}
        limit = self._boost(planned, min(limit, self.total), now_ms)
        rich = sorted(self._rich) if self._is_ranked else list(self._rich)
        for source in rich:
            if limit <= 0:
                break
            credit = self._credits[source] - planned.get(source, 0)
            limit -= self._plan(planned, source, min(credit, limit))
        if limit > 0:
            self._plan_rounds(planned, limit)
        return [PlannedService(source, amount) for source, amount in planned.items()]

    def _boost(self, planned: dict[int, int], limit: int, now_ms: int) -> int:
        """Plan those first that waited too long, as little as lets no other of them wait; what is left."""
        for source, since_ms in self._since_ms.items():
            if limit <= 0 or now_ms - since_ms < self._boost_ms:
                break
            limit -= self._plan(planned, source, 1)
        return limit

    def _plan(self, planned: dict[int, int], source: int, amount: int) -> int:
        before = planned.get(source, 0)
        amount = min(amount, self._amounts[source] - before)
        if amount > 0:
            planned[source] = before + amount
        return max(0, amount)

    def _plan_rounds(self, planned: dict[int, int], limit: int) -> None:
        """Go on as if the rounds to come were there already."""
        sources = sorted(self._amounts) if self._is_ranked else list(self._amounts)
        owed = {source: min(self._credits[source] - planned.get(source, 0), 0) for source in sources}
        while limit > 0:
            sources = [source for source in sources if planned.get(source, 0) < self._amounts[source]]
            # Whole rounds that everybody can use are planned at once.
            rounds = max(1, self._rounds(sources, planned, owed, limit))
            for source in sources:
                owed[source] += rounds * self._weight_of(source)
                if owed[source] > 0 and limit > 0:
                    amount = self._plan(planned, source, min(owed[source], limit))
                    owed[source] -= amount
                    limit -= amount

    def _rounds(self, sources: list[int], planned: dict[int, int], owed: dict[int, int], limit: int) -> int:
        if all(owed[source] < 0 for source in sources):  # no source is served before this many
            return min(-owed[source] // self._weight_of(source) for source in sources) + 1
        usable = [limit // sum(map(self._weight_of, sources))]
        for source in sources:
            left = self._amounts[source] - planned.get(source, 0) - owed[source]
            usable.append(left // self._weight_of(source))
        return min(usable)


class NestedShares:
    """Shares within shares: an outer source is chosen by the outer ones, and who of it is served by its own.

    The lowest ``bits`` of a source tell the outer one, the rest the inner one.
    """

    def __init__(self, outer: Shares, inner: Sequence[Shares], bits: int) -> None:
        self._outer = outer
        self._inner = inner
        self._bits = bits
        self._mask = (1 << bits) - 1

    @property
    def total(self) -> int:
        return self._outer.total

    def begin(self, now_ms: int) -> None:
        for shares in (self._outer, *self._inner):
            shares.begin(now_ms)

    def amount_of(self, source: int) -> int:
        return self._inner[source & self._mask].amount_of(source >> self._bits)

    def add(self, source: int, amount: int, now_ms: int) -> None:
        self._outer.add(source & self._mask, amount, now_ms)
        self._inner[source & self._mask].add(source >> self._bits, amount, now_ms)

    def take(self, source: int, amount: int) -> None:
        self._outer.take(source & self._mask, amount)
        self._inner[source & self._mask].take(source >> self._bits, amount)

    def serve(self, source: int, amount: int, now_ms: int) -> None:
        self._outer.serve(source & self._mask, amount, now_ms)
        self._inner[source & self._mask].serve(source >> self._bits, amount, now_ms)

    def is_boosted(self, source: int, now_ms: int) -> bool:
        outer, inner = source & self._mask, source >> self._bits
        return self._outer.is_boosted(outer, now_ms) or self._inner[outer].is_boosted(inner, now_ms)

    def plan(self, limit: int, now_ms: int) -> list[PlannedService]:
        return [
            PlannedService(source << self._bits | outer, amount)
            for outer, share in self._outer.plan(limit, now_ms)
            for source, amount in self._inner[outer].plan(share, now_ms)
        ]


LANE_BITS: Final = 3  # the lowest bits of a source that is a tenant in a lane; there are five lanes
LANE_MASK: Final = (1 << LANE_BITS) - 1
_ALIGNED_FROM: Final = 64  # messages at once


class SourceChooser(Protocol):
    """Who is served next; `Shares`, or shares within shares."""

    @property
    def total(self) -> int: ...
    def begin(self, now_ms: int) -> None: ...
    def amount_of(self, source: int) -> int: ...
    def add(self, source: int, amount: int, now_ms: int) -> None: ...
    def take(self, source: int, amount: int) -> None: ...
    def serve(self, source: int, amount: int, now_ms: int) -> None: ...
    def is_boosted(self, source: int, now_ms: int) -> bool: ...
    def plan(self, limit: int, now_ms: int) -> list[PlannedService]: ...


class LabelRun(NamedTuple):
    """Neighbours that are labelled alike: how many, their lane, and a hash of whom they belong to."""

    size: int
    lane: int
    tenant: int | None = None


class SourceNaming(NamedTuple):
    """The source that a label stands for, what to do when one has nothing any more, and the lane of one."""

    source_of: Callable[[int, int | None], int]  # by lane and tenant
    forget: Callable[[int], None]
    lane_of: Callable[[int], int]


class LabelPool:
    """Intervals by source. Whatever is told of offsets that were not looked at is not heard."""

    def __init__(self, shares: SourceChooser, naming: SourceNaming, *, is_aligned: bool = False) -> None:
        self.shares = shares
        self._is_aligned = is_aligned
        self.naming = naming
        self.now_ms = 0
        self.sources = IntervalMap("q")  # of all that was looked at and is not done
        self._known: dict[int, int] = {}  # how many messages of each source that is
        self._free: dict[int, IntervalSet] = {}  # by source, what can be handed out
        self.paces: dict[int, ServiceRate] = {}  # by lane, what was served

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

    def _aligned(self, planned: list[PlannedService], start: int, end: int) -> list[PlannedService]:
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
        return [PlannedService(source, amount) for source, amount in taken.items()]

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
                    self.paces[lane] = ServiceRate()
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
