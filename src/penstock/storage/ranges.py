"""Ranges of one log file: damaged ones, which are kept as they are and never served, and sets of positions."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple


class Hole(NamedTuple):
    """A range of bytes that is no correct batch."""

    start: int
    end: int


class OffsetRange(NamedTuple):
    """Offsets from ``first`` up to before ``next`` whose records are damaged, or lost for good."""

    first: int
    next: int

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.first <= offset < self.next


class Holes:
    """The holes of one file, in order and apart from each other."""

    __slots__ = ("_holes",)

    def __init__(self) -> None:
        self._holes: list[Hole] = []

    def __len__(self) -> int:
        return len(self._holes)

    def __iter__(self) -> Iterator[Hole]:
        return iter(self._holes)

    def __repr__(self) -> str:
        return f"<Holes {self._holes}>"

    @property
    def size_bytes(self) -> int:
        return sum(hole.end - hole.start for hole in self._holes)

    def add(self, hole: Hole) -> Hole | None:
        """Remember a hole, as one with those it overlaps; None if it was known already."""
        overlapping = [known for known in self._holes if known.start < hole.end and hole.start < known.end]
        touched = [hole, *overlapping]
        whole = Hole(min(each.start for each in touched), max(each.end for each in touched))
        if whole in overlapping:
            return None
        holes = [known for known in self._holes if known not in overlapping]
        insort(holes, whole)
        self._holes = holes  # in one step, for readers in other threads
        return whole

    def clear(self) -> None:
        self._holes = []

    def skip(self, position: int) -> int:
        """The position itself, or the end of the hole that it is in."""
        for hole in self._holes:
            if hole.start <= position < hole.end:
                return hole.end
        return position

    def clip(self, position: int, end: int) -> int:
        """How far one can read from ``position`` towards ``end`` before there is a hole."""
        for hole in self._holes:
            if position < hole.end:
                return max(position, min(end, hole.start))
        return end


class Ranges:
    """A set of positions, kept as ranges. Every change is one step for readers in other threads."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __repr__(self) -> str:
        return f"<Ranges {self._ranges}>"

    def covers(self, start: int, end: int) -> bool:
        """Whether every position of a range is in it."""
        ranges = self._ranges
        at = bisect_right(ranges, (start, end)) - 1
        if at + 1 < len(ranges) and ranges[at + 1][0] == start:
            at += 1  # the one that begins here ends later than what is asked for
        return start >= end or (at >= 0 and ranges[at][0] <= start and end <= ranges[at][1])

    def add(self, start: int, end: int) -> None:
        """Take a range in, as one with those it touches."""
        if start >= end:
            return
        touching = [known for known in self._ranges if known[0] <= end and start <= known[1]]
        if touching:
            start, end = min(start, touching[0][0]), max(end, touching[-1][1])
        kept = [known for known in self._ranges if known not in touching]
        self._ranges = sorted([*kept, (start, end)])

    def remove(self, start: int, end: int) -> None:
        """Leave a range out."""
        left = [(known[0], min(known[1], start)) for known in self._ranges if known[0] < start]
        right = [(max(known[0], end), known[1]) for known in self._ranges if known[1] > end]
        self._ranges = sorted({*left, *right})

    def clear(self) -> None:
        self._ranges = []
