"""The supply that shares deliveries out: between lanes of priority, or between tenants or keys.

The shell tells a label for each message, in the order of offsets: its lane, or a hash of what it belongs to. Each label
is a *source*, and what is free of it is a set of intervals; who is served next is up to `Shares`. So a lane with a
million neighbours costs one row, and messages of one priority that came in one batch are one interval.

To put urgent messages first, one has to know of them: so everything is looked at, up to the end, unless the intervals
become too many. Then looking goes on when some of them are done. Nothing of this is written anywhere: whoever takes
over looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from penstock.broker.queues.core.intervals import Interval, IntervalMap, IntervalSet
from penstock.broker.queues.core.shares import DEFAULT_BOOST_MS, Shares

LANES: Final = ("critical", "high", "normal", "low", "background")
NORMAL: Final = LANES.index("normal")
DEFAULT_WEIGHTS: Final[Mapping[str, int]] = {"critical": 50, "high": 25, "normal": 15, "low": 7, "background": 3}

_LOOK_AHEAD: Final = 10_000  # messages are looked at in such pieces
_INTERVALS_MAX: Final = 200_000
_SOURCES_MAX: Final = 10_000
_SHARED_SOURCES: Final = 256
_LABEL_MASK: Final = (1 << 62) - 1
_FAIR_QUANTUM: Final = 10  # messages of one tenant in a round


def lane_of(priority: str | bytes | None) -> int:
    """The lane of a priority as a message names it; what is not known is normal."""
    name = priority.decode("ascii", "replace") if isinstance(priority, bytes) else priority or ""
    return LANES.index(name.lower()) if name.lower() in LANES else NORMAL


class SharedSupply:
    """By source as `Shares` have it, and by offset within a source.

    ``source_of`` tells the source of a label, ``forget`` that a source has nothing any more.
    """

    def __init__(
        self,
        rows: IntervalMap,
        is_done: Callable[[int], bool],
        shares: Shares,
        source_of: Callable[[int | None], int],
        forget: Callable[[int], None],
        intervals_max: int = _INTERVALS_MAX,
    ) -> None:
        self._rows = rows
        self._is_done = is_done
        self._shares = shares
        self._source_of = source_of
        self._forget = forget
        self._intervals_max = intervals_max
        self._now_ms = 0
        self._seen_to = 0
        self._sources = IntervalMap("q")  # of all that was looked at and is not done
        self._known: dict[int, int] = {}  # how many messages of each source that is
        self._free: dict[int, IntervalSet] = {}  # by source, what can be handed out
        self._due = IntervalSet()  # to be delivered again, but not looked at yet

    def reset(self) -> None:
        for source in list(self._free):
            self._shares.take(source, self._shares.amount_of(source))
        for source in list(self._known):
            self._forget(source)
        self._seen_to = 0
        self._sources.reset()
        self._known.clear()
        self._free.clear()
        self._due.reset()

    def pass_time(self, now_ms: int) -> None:
        """Time has passed; what waits too long is boosted."""
        self._now_ms = max(self._now_ms, now_ms)

    def free_of(self, source: int) -> int:
        """How many messages of a source could be handed out."""
        return self._shares.amount_of(source)

    # -- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, limit: int, start: int, end: int) -> list[Interval]:
        chosen: list[Interval] = []
        for source, amount in self._shares.plan(limit, self._now_ms):
            left = amount
            for first, last, _ in self._free[source].within(start, end - 1):
                if left <= 0:
                    break
                chosen.append(Interval(first, min(last, first + left - 1)))
                left -= chosen[-1].size
        return chosen

    def is_free(self, first: int, last: int) -> bool:
        source = self._source_at(first)
        return source is not None and source in self._free and self._free[source].covers(first, last)

    def _source_at(self, offset: int) -> int | None:
        row = self._sources.at(offset)
        return None if row is None else row[2][0]

    # -- looking ------------------------------------------------------------------------------------------------------

    def unseen(self, limit: int, start: int, end: int) -> Interval | None:  # noqa: ARG002
        begin = max(start, self._seen_to)
        if begin >= end or (len(self._sources) >= self._intervals_max and self._shares.total):
            return None
        return Interval(begin, min(end, begin + _LOOK_AHEAD) - 1)

    def see(self, first: int, labels: Sequence[int | None]) -> None:
        offset = first
        for label, run in groupby(labels):
            size = sum(1 for _ in run)
            self.see_run(offset, offset + size - 1, label)
            offset += size

    def see_run(self, first: int, last: int, label: int | None) -> None:
        """Hear that neighbours have one label, as those of a batch do."""
        assert first >= self._seen_to, "messages are looked at once, in order"
        self._seen_to = last + 1
        source: int | None = None
        for piece in self._undone(first, last):
            if source is None:
                source = self._source_of(label)
            self._sources.put(piece.first, piece.last, (source,))
            self._known[source] = self._known.get(source, 0) + piece.size
            free = list(self._rows.gaps(*piece))
            if self._due:
                free += [Interval(low, high) for low, high, _ in self._due.within(*piece)]
            for each in free:
                self._release(source, each)
        if self._due:
            self._due.clear(first, last)

    def _undone(self, first: int, last: int) -> Iterator[Interval]:
        """What is not done between two offsets."""
        if not self._rows.has_any(first, last) and not self._is_done(first):
            yield Interval(first, last)
            return
        begin: int | None = None
        for offset in range(first, last + 1):
            if self._is_done(offset):
                if begin is not None:
                    yield Interval(begin, offset - 1)
                begin = None
            elif begin is None:
                begin = offset
        if begin is not None:
            yield Interval(begin, last)

    # -- what happens to messages -------------------------------------------------------------------------------------

    def on_leased(self, first: int, last: int) -> None:
        if self._due:
            self._due.clear(first, last)
        for source, piece in self._pieces(first, last):
            taken = self._seize(source, piece)
            if taken:
                self._shares.serve(source, taken, self._now_ms)
                self._drop_empty(source)

    def on_due(self, first: int, last: int) -> None:
        if last >= self._seen_to:
            self._due.add(max(first, self._seen_to), last)
        for source, piece in self._pieces(first, last):
            free = self._free.get(source)
            gaps = list(free.gaps(*piece)) if free is not None else [piece]
            for gap in gaps:
                self._release(source, gap)

    def on_done(self, first: int, last: int) -> None:
        if self._due:
            self._due.clear(first, last)
        for source, piece in self._pieces(first, last):
            taken = self._seize(source, piece)
            if taken:
                self._shares.take(source, taken)
                self._drop_empty(source)
            self._sources.clear(*piece)
            self._known[source] -= piece.size
            if not self._known[source]:
                del self._known[source]
                self._forget(source)

    def _pieces(self, first: int, last: int) -> list[tuple[int, Interval]]:
        """What was looked at between two offsets, by source."""
        if first >= self._seen_to:
            return []
        return [(facts[0], Interval(low, high)) for low, high, facts in self._sources.within(first, last)]

    def _release(self, source: int, piece: Interval) -> None:
        if source not in self._free:
            self._free[source] = IntervalSet()
        self._free[source].add(*piece)
        self._shares.add(source, piece.size, self._now_ms)

    def _seize(self, source: int, piece: Interval) -> int:
        """Make an interval free no more; how many messages of it were."""
        free = self._free.get(source)
        if free is None:
            return 0
        taken = sum(high - low + 1 for low, high, _ in free.within(*piece))
        if taken:
            free.clear(*piece)
        return taken

    def _drop_empty(self, source: int) -> None:
        if not self._shares.amount_of(source):
            del self._free[source]


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


def lane_supply(
    rows: IntervalMap,
    is_done: Callable[[int], bool],
    *,
    weights: Mapping[str, int] = DEFAULT_WEIGHTS,
    boost_ms: int = DEFAULT_BOOST_MS,
    intervals_max: int = _INTERVALS_MAX,
) -> SharedSupply:
    """Lanes by weight, critical first in each round. Labels are numbers of lanes; None is normal."""
    credit_of = [max(1, weights[lane]) for lane in LANES]
    shares = Shares(credit_of.__getitem__, is_ranked=True, boost_ms=boost_ms)
    return SharedSupply(
        rows,
        is_done,
        shares,
        source_of=lambda label: NORMAL if label is None or not 0 <= label < len(LANES) else label,
        forget=lambda _: None,
        intervals_max=intervals_max,
    )


def fair_supply(
    rows: IntervalMap,
    is_done: Callable[[int], bool],
    *,
    boost_ms: int = DEFAULT_BOOST_MS,
    intervals_max: int = _INTERVALS_MAX,
    sources_max: int = _SOURCES_MAX,
) -> SharedSupply:
    """Everybody the same. Labels are hashes of tenants or keys."""
    tenants = Tenants(sources_max)
    shares = Shares(lambda _: _FAIR_QUANTUM, boost_ms=boost_ms)
    return SharedSupply(rows, is_done, shares, tenants.source_of, tenants.forget, intervals_max)
