"""What is to be looked at when: intervals of offsets, sorted roughly by time.

A mark costs 24 bytes and is never searched for: one that no longer means anything is found out when its time comes,
by whoever put it here. Times are gathered in buckets, a millisecond wide when near, a second or a minute when far;
a wide bucket is sorted into narrower ones as soon as it begins. So adding is O(1), but for the first mark of a bucket.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from math import inf
from typing import Final

from penstock.broker.queues.core.intervals import Interval

_NEAR_MS: Final = 60_000
_FAR_MS: Final = 3_600_000
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60_000


class Deadlines:
    """Marks by time."""

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}  # by when they begin: time, first and last offset of each mark
        self._begins: list[int] = []  # a heap of their keys
        self._now_ms = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def next_ms(self) -> float:
        """Nothing is due before this time; it may be early by the width of a bucket, never late."""
        return self._begins[0] if self._begins else inf

    def add(self, at_ms: int, first: int, last: int) -> None:
        away_ms = at_ms - self._now_ms
        width_ms = 1 if away_ms <= _NEAR_MS else _SECOND_MS if away_ms <= _FAR_MS else _MINUTE_MS
        begins_ms = at_ms - at_ms % width_ms
        bucket = self._buckets.get(begins_ms)
        if bucket is None:
            bucket = self._buckets[begins_ms] = array("q")
            heappush(self._begins, begins_ms)
        bucket.extend((at_ms, first, last))
        self._size += 1

    def pop(self, now_ms: int) -> list[Interval]:
        """What is due by now, and marked no longer; sorted, with neighbours made one."""
        self._now_ms = max(self._now_ms, now_ms)
        due: list[tuple[int, int]] = []
        while self._begins and self._begins[0] <= now_ms:
            bucket = self._buckets.pop(heappop(self._begins))
            self._size -= len(bucket) // 3
            marks = iter(bucket)
            for at_ms, first, last in zip(marks, marks, marks, strict=True):
                if at_ms <= now_ms:
                    due.append((first, last))
                else:
                    self.add(at_ms, first, last)
        return _joined(due)


def _joined(due: list[tuple[int, int]]) -> list[Interval]:
    due.sort()
    joined: list[Interval] = []
    low, high = 0, -2
    for first, last in due:
        if first <= high + 1:
            high = max(high, last)
            continue
        if high >= low:
            joined.append(Interval(low, high))
        low, high = first, last
    if high >= low:
        joined.append(Interval(low, high))
    return joined
