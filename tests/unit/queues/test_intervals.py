"""Intervals, and times, against twins that keep every offset for itself."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.features.queues.core import intervals
from penstock.features.queues.core.deliveries import OffsetDeadlines
from penstock.features.queues.core.intervals import Interval, IntervalMap, IntervalSet

SPACE = 60

changes = st.tuples(st.integers(0, SPACE), st.integers(0, 15), st.sampled_from([None, (1, 1), (2, 1), (2, 2)]))


def check(rows: IntervalMap, twin: dict[int, tuple[int, ...]], space: int = SPACE) -> None:
    found = list(rows)
    assert len(found) == len(rows)
    assert {offset: facts for first, last, facts in found for offset in range(first, last + 1)} == twin
    for (_, last, facts), (first, _, following) in pairwise(found):
        assert last < first, "rows are sorted and disjoint"
        assert last + 1 < first or facts != following, "neighbours that say the same are one"
    for first, last in [(0, space), (space // 3, space // 2)]:
        inside = {o: facts for low, high, facts in rows.within(first, last) for o in range(low, high + 1)}
        assert inside == {offset: facts for offset, facts in twin.items() if first <= offset <= last}
        missing = [offset for low, high in rows.gaps(first, last) for offset in range(low, high + 1)]
        assert missing == [offset for offset in range(first, last + 1) if offset not in twin]


@settings(max_examples=150, deadline=None)
@given(st.lists(changes, max_size=40))
def test_a_map_of_intervals_is_a_map_of_offsets(steps: list[tuple[int, int, tuple[int, ...] | None]]) -> None:
    rows = IntervalMap("iq")
    twin: dict[int, tuple[int, ...]] = {}
    for first, more, facts in steps:
        for offset in range(first, first + more + 1):
            twin.pop(offset, None)
            if facts is not None:
                twin[offset] = facts
        if facts is None:
            rows.clear(first, first + more)
        else:
            rows.put(first, first + more, facts)
        check(rows, twin, SPACE + 16)
        row = rows.at(first)
        assert (row is None) == (facts is None)


def test_many_chunks_are_one_map() -> None:
    """Enough scattered rows for chunks to split, join and vanish."""
    rolls = random.Random(7)
    rows = IntervalMap("iq")
    twin: dict[int, tuple[int, ...]] = {}
    space = 12_000
    for turn in range(9_000):
        first = rolls.randrange(space)
        last = min(space - 1, first + (rolls.randrange(4) if rolls.random() < 0.999 else 4_000))
        facts = None if (turn > 6_000) ^ (rolls.random() < 0.1) else (rolls.randrange(50), 1)
        for offset in range(first, last + 1):
            twin.pop(offset, None)
            if facts is not None:
                twin[offset] = facts
        rows._replace(first, last, facts)
        if turn % 1_000 == 999:
            check(rows, twin, space)
    assert len(rows) > 0
    rows.clear(0, space)
    assert len(rows) == 0
    assert not rows._chunks


def test_scattered_rows_share_chunks() -> None:
    """Most rows go, a few stay far from each other: they must not keep a chunk each."""
    rows = IntervalMap("iqqi")
    for offset in range(100_000):
        rows.put(offset, offset, (offset, 0, 0, 0))
    for offset in range(100_000):
        if offset % 500:
            rows.clear(offset, offset)
    assert len(rows) == 200
    assert len(rows._chunks) <= 200 // intervals._ROWS_MIN + 2


def test_a_set_knows_what_it_covers() -> None:
    offsets = IntervalSet()
    offsets.add(1, 3)
    offsets.add(4, 6)
    offsets.add(9, 9)
    assert offsets.intervals() == [Interval(1, 6), Interval(9, 9)]
    assert offsets.covers(2, 5)
    assert not offsets.covers(5, 9)
    assert not offsets.covers(0, 1)
    assert not offsets.covers(7, 8)


times = st.one_of(st.integers(0, 100), st.integers(0, 100_000), st.integers(0, 50_000_000))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.booleans(), times), max_size=40))
def test_nothing_is_due_early_or_late(steps: list[tuple[bool, int]]) -> None:
    deadlines = OffsetDeadlines()
    twin: list[tuple[int, int]] = []
    now = 0
    for number, (is_pop, time) in enumerate(steps):
        if not is_pop:
            deadlines.add(time, 2 * number, 2 * number)
            twin.append((time, number))
        else:
            now = max(now, time)
            due = sorted(number for at, number in twin if at <= now)
            twin = [(at, number) for at, number in twin if at > now]
            assert deadlines.pop(now) == [Interval(2 * number, 2 * number) for number in due]
        assert len(deadlines) == len(twin)
        assert deadlines.next_ms <= min((at for at, _ in twin), default=float("inf"))
        assert (deadlines.next_ms == float("inf")) == (not twin)


def test_what_is_near_is_known_to_the_millisecond() -> None:
    deadlines = OffsetDeadlines()
    deadlines.add(7_200_123, 0, 0)
    while deadlines.next_ms < 7_200_123:
        assert deadlines.pop(int(deadlines.next_ms)) == []
    assert deadlines.next_ms == 7_200_123


def test_neighbours_that_are_due_come_as_one() -> None:
    deadlines = OffsetDeadlines()
    for first, last in [(7, 9), (0, 3), (3, 4), (5, 5), (20, 20), (8, 8)]:
        deadlines.add(first, first, last)
    assert deadlines.pop(30) == [Interval(0, 5), Interval(7, 9), Interval(20, 20)]
