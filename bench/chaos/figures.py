"""What a history amounts to: operations by outcome, throughput, and the longest silence around each fault. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bench.chaos.history import Committed, Ended, Event, Polled, Sent

WITHDRAWN = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
"""What the client itself dropped when it aborted its transaction: nothing has failed."""
AFTER_S = 10.0
"""How long after the healing of a fault a silence still counts as its."""


@dataclass
class Figures:
    """Counts of operations, and the times at which something was achieved."""

    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    acked_at: list[float] = field(default_factory=list)
    ended_at: list[float] = field(default_factory=list)
    polled_at: list[float] = field(default_factory=list)
    records_read: int = 0

    @classmethod
    def of(cls, events: Iterable[Event]) -> Figures:
        figures = cls()
        for event in events:
            figures._count(event)
        for times in (figures.acked_at, figures.ended_at, figures.polled_at):
            times.sort()
        return figures

    def _count(self, event: Event) -> None:
        if isinstance(event, Sent):
            is_withdrawn = any(word in event.error for word in WITHDRAWN)
            self.outcomes["send"]["withdrawn" if is_withdrawn else event.outcome] += 1
            if event.outcome == "ok":
                self.acked_at.append(event.at)
        elif isinstance(event, Ended):
            self.outcomes[event.intent][event.outcome] += 1
            if event.outcome == "ok":
                self.ended_at.append(event.at)
        elif isinstance(event, Committed):
            self.outcomes["commit offsets"][event.outcome] += 1
        elif isinstance(event, Polled):
            self.outcomes["poll"]["ok"] += 1
            self.polled_at.append(event.at)
            self.records_read += len(event.rows)


def longest_silence(times: Sequence[float], began_at: float, healed_at: float, until: float) -> float:
    """The longest time without any of `times` that touches a fault, up to a while after it was healed.

    `times` are sorted. After the last of them there is silence `until` nobody asked for more.
    """
    last = max(min(healed_at + AFTER_S, until), healed_at)
    inside = times[bisect_left(times, began_at) : bisect_right(times, last)]
    return max((after - before for before, after in pairwise([began_at, *inside, last])), default=0.0)


def per_second(times: Sequence[float], began_at: float, length_s: float) -> list[int]:
    """How many of `times` fall into each second."""
    counts = [0] * (int(length_s) + 1)
    for at in times:
        second = int(at - began_at)
        if 0 <= second < len(counts):
            counts[second] += 1
    return counts
