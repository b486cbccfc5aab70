"""What is known to be damaged in one log file: ranges that are kept as they are, reported, and never served."""

from __future__ import annotations

from bisect import insort
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
