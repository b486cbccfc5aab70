"""A hierarchical timing wheel: what is to be looked at when, for the near days.

Time goes in ticks of 10 ms. An entry is in one of four levels, by how far away it is: a bucket of the lowest level is
one tick, one of the next level all buckets of the level below. As time reaches a bucket, its entries move to lower
levels, at most three times in all. So adding and removing take the same few steps however many entries there are, and
moving time costs by entries and buckets that are not empty, never by ticks that passed.

The highest level is a ring: each bucket is one *period* of 2.9 hours, and ``periods_ahead`` of them are held, the
present one included. What is later does not belong in here: `holds` says so, and ``horizon_ms`` names the first moment
that is too far. The keeper of the rest loads a period once the horizon has passed over it.

A bucket falls apart all at once, and would do so at the same moment in every wheel of a node. So they have different
*leads*: each counts ticks from another number, and they do this work one after the other.

What is due is told again and again until it is moved, removed or *held*: then somebody has it in hand.

Entries are numbers, and all that is known of them is in columns of machine integers: 16 bytes each. A bucket is a ring
of entries that are linked to their leaders, so an entry is taken out without being searched for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

TICK_MS: Final = 10

_WIDTHS: Final = (8, 6, 6, 6)  # bits of a tick that choose the bucket, by level
_SHIFTS: Final = (0, 8, 14, 20)
_MASKS: Final = tuple((1 << width) - 1 for width in _WIDTHS)
_FIRSTS: Final = (0, 256, 320, 384)  # the first bucket of each level
_DUE: Final = 448  # the ring of entries whose time has come
_HELD: Final = 449  # the ring of those that somebody has in hand already
_ENTRIES: Final = 450  # numbers from here on are entries
_TOP: Final = 3
_PERIOD_SHIFT: Final = _SHIFTS[_TOP]
_FREE: Final = -1

PERIOD_MS: Final = TICK_MS << _PERIOD_SHIFT
PERIODS_MAX: Final = 1 << _WIDTHS[_TOP]


def _level_of(bucket: int) -> int:
    return 0 if bucket < _FIRSTS[1] else 1 if bucket < _FIRSTS[2] else 2 if bucket < _FIRSTS[_TOP] else _TOP


class Wheel:
    """Entries by time. One is never due before its time, and at most a tick after it, if somebody looks."""

    def __init__(self, now_ms: int = 0, periods_ahead: int = 16, lead: int = 0) -> None:
        assert 1 <= periods_ahead <= PERIODS_MAX, f"a wheel holds 1 to {PERIODS_MAX} periods"
        self._periods_ahead = periods_ahead
        self._lead = lead
        self._tick = now_ms // TICK_MS + lead
        self._next = array("i", range(_ENTRIES))  # a ring that is empty is linked to itself
        self._previous = array("i", range(_ENTRIES))
        self._times = array("q", bytes(8 * _ENTRIES))
        self._bits = [0, 0, 0, 0]  # which buckets of each level have entries
        self._free = _FREE
        self._size = 0
        self._due_size = 0

    def __len__(self) -> int:
        """How many entries wait or are due."""
        return self._size

    @property
    def now_ms(self) -> int:
        """How far time has come here."""
        return (self._tick - self._lead) * TICK_MS

    @property
    def slots(self) -> int:
        """Every entry's number is below this: so long are columns of those who know more of entries."""
        return len(self._next)

    @property
    def horizon(self) -> int:
        """The number of the first period that is too far away."""
        return (self._tick >> _PERIOD_SHIFT) + self._periods_ahead

    @property
    def horizon_ms(self) -> int:
        """Times after this one less a tick are too far away."""
        return ((self.horizon << _PERIOD_SHIFT) - self._lead) * TICK_MS

    def holds(self, at_ms: int) -> bool:
        """Whether a time is near enough."""
        return self.period_of(at_ms) < self.horizon

    def period_of(self, at_ms: int) -> int:
        """The number of the period that a time is in."""
        return self._tick_of(at_ms) >> _PERIOD_SHIFT

    def near_from_ms(self, period: int) -> int:
        """When a period that is too far away is so no longer."""
        return ((period - self._periods_ahead + 1 << _PERIOD_SHIFT) - self._lead) * TICK_MS

    def _tick_of(self, at_ms: int) -> int:
        """The first tick that is not before a time."""
        return -(-at_ms // TICK_MS) + self._lead

    @property
    def first_slot(self) -> int:
        """The first number that an entry can have; those below are heads of rings."""
        return _ENTRIES

    def time_of(self, entry: int) -> int:
        return self._times[entry]

    # -- entries ------------------------------------------------------------------------------------------------------

    def reserve(self) -> int:
        """A number for an entry that is not linked yet."""
        entry = self._free
        if entry == _FREE:
            entry = len(self._next)
            self._next.append(entry)
            self._previous.append(entry)
            self._times.append(0)
            return entry
        self._free = self._next[entry]
        self._next[entry] = self._previous[entry] = entry
        return entry

    def release(self, entry: int) -> None:
        """Give back the number of an entry that is not linked."""
        assert self._next[entry] == entry == self._previous[entry], "it is linked, or free already"
        self._next[entry] = self._free
        self._previous[entry] = _FREE
        self._free = entry

    def add(self, at_ms: int) -> int:
        """A new entry that is due at some time, which is near enough; its number."""
        entry = self.reserve()
        self._times[entry] = at_ms
        self._size += 1
        self._place(entry)
        return entry

    def remove(self, entry: int) -> None:
        """Forget an entry; its number may be given to another one."""
        self.unlink(entry)
        self.release(entry)

    def move(self, entry: int, at_ms: int) -> None:
        """An entry is due at another time."""
        self.unlink(entry)
        self.link(entry, at_ms)

    def is_linked(self, entry: int) -> bool:
        """Whether an entry waits or is due."""
        return self._next[entry] != entry

    def link(self, entry: int, at_ms: int) -> None:
        """Have an entry wait until some time."""
        assert self._next[entry] == entry, "it waits already"
        self._times[entry] = at_ms
        self._size += 1
        self._place(entry)

    def unlink(self, entry: int) -> None:
        """Have an entry neither wait nor be due, for now."""
        before, after = self._previous[entry], self._next[entry]
        assert after != entry, "it does not wait"
        assert before != _FREE, "there is no such entry"
        self._next[before] = after
        self._previous[after] = before
        self._next[entry] = self._previous[entry] = entry
        self._size -= 1
        if self._tick_of(self._times[entry]) <= self._tick:
            self._due_size -= 1
        if before == after and before < _DUE:
            self._mark_empty(before)

    def _place(self, entry: int) -> None:
        """Link an entry into the bucket that its time belongs to now."""
        tick = self._tick_of(self._times[entry])
        now = self._tick
        if tick <= now:
            bucket = _DUE
            self._due_size += 1
        else:
            apart = tick ^ now
            level = 0 if apart < 256 else 1 if apart < 1 << 14 else 2 if apart < 1 << 20 else _TOP
            assert level < _TOP or tick >> _PERIOD_SHIFT < self.horizon, "it is behind the horizon"
            place = (tick >> _SHIFTS[level]) & _MASKS[level]
            self._bits[level] |= 1 << place
            bucket = _FIRSTS[level] + place
        self._append(bucket, entry)

    def _append(self, bucket: int, entry: int) -> None:
        last = self._previous[bucket]
        self._next[last] = self._previous[bucket] = entry
        self._previous[entry] = last
        self._next[entry] = bucket

    def _mark_empty(self, bucket: int) -> None:
        level = _level_of(bucket)
        self._bits[level] &= ~(1 << (bucket - _FIRSTS[level]))

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def next_ms(self) -> float:
        """Nothing more becomes due before this; it may be early by the width of a bucket, never late."""
        found = self._next_bucket()
        return inf if found is None else (found[0] - self._lead) * TICK_MS

    @property
    def due_count(self) -> int:
        return self._due_size

    @property
    def is_due(self) -> bool:
        """Whether `due` has anything to tell."""
        return self._next[_DUE] != _DUE

    def advance(self, now_ms: int) -> None:
        """Let time pass, by any amount. It never goes back."""
        until = now_ms // TICK_MS + self._lead
        while (found := self._next_bucket()) is not None and found[0] <= until:
            self._tick = found[0]
            self._empty(found[1])
        self._tick = max(self._tick, until)

    def due(self, limit: int) -> list[int]:
        """Entries whose time has come, the earliest first but for those that were added late."""
        found: list[int] = []
        entry = self._next[_DUE]
        while entry != _DUE and len(found) < limit:
            found.append(entry)
            entry = self._next[entry]
        return found

    def take(self, limit: int) -> list[int]:
        """As `due`, and the caller has them in hand: they are not told again until they are moved."""
        found = self.due(limit)
        if found:
            after = self._next[found[-1]]
            self._next[_DUE], self._previous[after] = after, _DUE
            last = self._previous[_HELD]
            self._next[last], self._previous[found[0]] = found[0], last
            self._next[found[-1]], self._previous[_HELD] = _HELD, found[-1]
        return found

    def restart(self, now_ms: int) -> list[int]:
        """Go by a clock that is behind the one before. Entries that are too far away by it are told, and not linked."""
        entries = [entry for _, bucket in self.buckets() for entry in bucket]
        for entry in entries:
            self._next[entry] = self._previous[entry] = entry
        self._next[:_ENTRIES] = self._previous[:_ENTRIES] = array("i", range(_ENTRIES))
        self._bits = [0, 0, 0, 0]
        self._tick = now_ms // TICK_MS + self._lead
        self._size = self._due_size = 0
        far: list[int] = []
        for entry in entries:
            if self.holds(self._times[entry]):
                self.link(entry, self._times[entry])
            else:
                far.append(entry)
        return far

    def buckets(self) -> Iterator[tuple[int, list[int]]]:
        """All entries in the order of buckets: times in one are not after those of the next.

        Each bucket is told with a time that everything in it is before or at. Nothing may be changed meanwhile.
        """
        if self._due_size:
            yield self.now_ms, [*self._ring(_HELD), *self._ring(_DUE)]
        for level in range(_TOP + 1):
            shift = _SHIFTS[level]
            for place, begin in self._filled(level):
                yield (begin + (1 << shift) - 1 - self._lead) * TICK_MS, self._ring(_FIRSTS[level] + place)

    # -- buckets ------------------------------------------------------------------------------------------------------

    def _next_bucket(self) -> tuple[int, int] | None:
        """When the first bucket with entries begins, and which one it is."""
        for level, bits in enumerate(self._bits):
            if not bits:
                continue
            if level == _TOP:
                place, begin = next(self._filled(_TOP))
                return begin, _FIRSTS[_TOP] + place
            place = (bits & -bits).bit_length() - 1
            above = _SHIFTS[level + 1]
            return (self._tick >> above << above) + (place << _SHIFTS[level]), _FIRSTS[level] + place
        return None

    def _filled(self, level: int) -> Iterator[tuple[int, int]]:
        """The places of a level that have entries, and the ticks at which they begin, by time."""
        shift, mask = _SHIFTS[level], _MASKS[level]
        now = self._tick >> shift
        # Below the highest level every entry is in the present round, so that places are in order from the present one.
        for ahead in range(1, mask + 1):
            place = (now + ahead) & mask
            if self._bits[level] >> place & 1:
                yield place, (now + ahead) << shift

    def _ring(self, bucket: int) -> list[int]:
        found: list[int] = []
        entry = self._next[bucket]
        while entry != bucket:
            found.append(entry)
            entry = self._next[entry]
        return found

    def _empty(self, bucket: int) -> None:
        """Move the entries of a bucket that time has reached to where they belong now.

        By time, so that those of one new bucket follow each other: the bucket is chosen by the first of them.
        """
        entries = self._ring(bucket)
        times = self._times
        entries.sort(key=times.__getitem__)
        self._next[bucket] = self._previous[bucket] = bucket
        self._mark_empty(bucket)
        at = 0
        while at < len(entries):
            self._place(entries[at])
            chosen = self._next[entries[at]]
            following = bisect_right(entries, self._last_ms(chosen, times[entries[at]]), at, key=times.__getitem__)
            if chosen == _DUE:
                self._due_size += following - at - 1
            self._chain(chosen, entries[at:following])
            at = following

    def _chain(self, bucket: int, entries: list[int]) -> None:
        """Link entries that follow the first of them, which is a bucket's last one already."""
        following, previous = self._next, self._previous
        before = entries[0]
        for entry in entries[1:]:
            following[before] = entry
            previous[entry] = before
            before = entry
        following[before] = bucket
        previous[bucket] = before

    # -- at once ------------------------------------------------------------------------------------------------------

    @property
    def has_free(self) -> bool:
        """Whether there are numbers that can be used again."""
        return self._free != _FREE

    def fill(self, times: Sequence[int]) -> int:
        """Add many entries, the earliest first: the first of their numbers, which follow each other.

        Neighbours in time are neighbours in a bucket, so of each bucket only the ends are looked at.
        """
        first, end = len(self._next), len(self._next) + len(times)
        self._times.extend(times)
        self._next.extend(range(first + 1, end + 1))
        self._previous.extend(range(first - 1, end - 1))
        self._size += len(times)
        entry = first
        while entry < end:
            self._place(entry)
            bucket = self._next[entry]
            following = first + bisect_right(times, self._last_ms(bucket, times[entry - first]))
            if bucket == _DUE:
                self._due_size += following - entry - 1
            if following > entry + 1:
                self._next[entry] = entry + 1
                self._next[following - 1] = bucket
                self._previous[bucket] = following - 1
            entry = following
        return first

    def _last_ms(self, bucket: int, at_ms: int) -> int:
        """The last time that belongs into the same bucket as another one."""
        if bucket == _DUE:
            return self.now_ms
        shift = _SHIFTS[_level_of(bucket)]
        return (((self._tick_of(at_ms) >> shift) + 1 << shift) - 1 - self._lead) * TICK_MS

    def pack(self, first: int, end: int) -> tuple[array[int], array[int], array[int]]:
        """Times and both links of consecutive numbers. From 0 on they are all that is known, but for `marks`."""
        return self._times[first:end], self._next[first:end], self._previous[first:end]

    @property
    def marks(self) -> tuple[int, int, int]:
        """What links do not tell: how far time has come, how many entries there are, the first number that is free."""
        return self.now_ms, self._size, self._free

    def unpack(
        self, marks: tuple[int, int, int], times: array[int], following: array[int], previous: array[int]
    ) -> None:
        """Be as another wheel of the same lead was.

        The caller that had entries of that one in hand is gone, so they are due again.
        """
        assert len(self._next) == _ENTRIES, "there are entries already"
        now_ms, self._size, self._free = marks
        self._tick = now_ms // TICK_MS + self._lead
        self._times, self._next, self._previous = times, following, previous
        for level, first in enumerate(_FIRSTS):
            filled = (place for place in range(_MASKS[level] + 1) if following[first + place] != first + place)
            self._bits[level] = sum(1 << place for place in filled)
        due = [*self._ring(_HELD), *self._ring(_DUE)]
        self._due_size = len(due)
        for ring in (_HELD, _DUE):
            self._next[ring] = self._previous[ring] = ring
        for entry in due:
            self._append(_DUE, entry)
