"""The choice of what a queue hands out next, behind one small interface.

A supply keeps nothing that must survive: it is told what happens to messages and could be built anew from that at any
time. What is due to be delivered again goes first, then what was never delivered, both by offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.broker.queues.core.intervals import Interval, IntervalMap, IntervalSet
from penstock.broker.queues.core.pool import Pool, Run


class Supply(Protocol):
    """Chooses among the messages that are free: those which no row tells of, and those which became due."""

    def choose(self, limit: int, start: int, end: int) -> list[Interval]:
        """What to hand out now, the best first: up to ``limit`` messages from ``start`` to before ``end``."""

    def is_free(self, first: int, last: int) -> bool:
        """Whether all of an interval may be handed out now."""

    def unseen(self, limit: int, start: int, end: int) -> Interval | None:
        """What to look at before ``limit`` messages can be chosen; None if that is known, or never needed."""

    @property
    def pool(self) -> Pool | None:
        """The sources that it shares deliveries out to, if it does."""

    @property
    def known_to(self) -> int:
        """Everything before this was looked at, where that is needed."""

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[Run] = ()) -> None:
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

    def see(self, first: int, keys: Sequence[int | None], runs: Sequence[Run] = ()) -> None:
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
