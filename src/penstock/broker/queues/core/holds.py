"""Which messages are acked in transactions that have not ended: they keep their lease until it is decided.

A row stays what it was; this only says that nobody may touch it meanwhile, nor time. So an abort has nothing to undo.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.broker.queues.core.intervals import Interval, IntervalMap
from penstock.broker.queues.core.rows import Row

NOBODY: Final = -1  # no producer: whoever acks, acks at once


class Holds:
    """Intervals by offset, each held for one producer's transaction."""

    def __init__(self) -> None:
        self._spans = IntervalMap("q")
        # What each producer was given. Some of it may be done with by now, so only the spans tell what is held.
        self._given: dict[int, list[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return len(self._spans) > 0

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """First and last offset, and for whom, by offset."""
        return ((first, last, producer_id) for first, last, (producer_id,) in self._spans)

    def has_any_of(self, producer_id: int) -> bool:
        return producer_id in self._given

    def add(self, first: int, last: int, producer_id: int) -> None:
        self._spans.put(first, last, (producer_id,))
        self._given.setdefault(producer_id, []).append((first, last))

    def end(self, producer_id: int) -> list[Interval]:
        """Hold nothing for a producer any more; what was held for it, by offset."""
        ended: list[Interval] = []
        for given in sorted(self._given.pop(producer_id, ())):
            mine = [(first, last) for first, last, owner in self.within(*given) if owner == producer_id]
            for first, last in mine:
                self._spans.clear(first, last)
                ended.append(Interval(first, last))
        return ended

    def within(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """What is held between two offsets, cut to them."""
        return ((low, high, owner) for low, high, (owner,) in self._spans.within(first, last))

    def free_parts(self, row: Row) -> Iterator[Row]:
        """The parts of a row that are not held."""
        return (row._replace(first=first, last=last) for first, last in self._spans.gaps(row.first, row.last))

    def clear(self, first: int, last: int) -> None:
        """Messages are done with, whatever becomes of the transaction."""
        self._spans.clear(first, last)

    def reset(self) -> None:
        self._spans.reset()
        self._given.clear()
