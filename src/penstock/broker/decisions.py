"""The transactions of one partition whose markers are written and may not be committed yet.

Readers of committed data wait for them as they wait for open ones: a marker that is lost again decided nothing.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Decided(NamedTuple):
    """A transaction from its first batch to behind its marker."""

    first_offset: int
    next_offset: int


class Decisions:
    """In the order of their markers, and only those that began before all that were decided after them.

    So the first one is always the one that began first.
    """

    __slots__ = ("_decided",)

    def __init__(self) -> None:
        self._decided: deque[Decided] = deque()

    def __len__(self) -> int:
        return len(self._decided)

    def add(self, ended: Decided, high_watermark: int) -> None:
        decided = self._decided
        self.forget(high_watermark)
        while decided and decided[-1].first_offset > ended.first_offset:
            decided.pop()  # began later and is committed earlier, so it never is what readers wait for
        decided.append(ended)

    def forget(self, high_watermark: int) -> None:
        """Let go of those that are committed."""
        decided = self._decided
        while decided and decided[0].next_offset <= high_watermark:
            decided.popleft()

    def first_offset(self, high_watermark: int) -> int | None:
        """Where the first one began whose marker is not committed."""
        self.forget(high_watermark)
        return self._decided[0].first_offset if self._decided else None

    def cut(self, end_offset: int) -> None:
        """The log was truncated. What was decided behind its end is waited for until all that is left is committed."""
        clipped = [Decided(ended.first_offset, min(ended.next_offset, end_offset)) for ended in self._decided]
        self._decided = deque(ended for ended in clipped if ended.first_offset < end_offset)
