"""Ranges of bytes of one file, as few and as long as they can be."""

from __future__ import annotations

from bisect import bisect_right


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
