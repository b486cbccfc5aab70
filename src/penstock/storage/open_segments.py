"""The segments of a log that have a file open, and what they all need to know of the log.

A log may have thousands of sealed segments, and a process only so many files.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from penstock.storage.epochs import LeaderEpochs

if TYPE_CHECKING:
    from penstock.storage.segment import Segment


class OpenSegments:
    """Keeps a log from holding a file and an index open for every sealed segment that was ever read."""

    __slots__ = ("_limit", "_opened", "epochs", "has_damage")

    def __init__(self, limit: int = 16) -> None:
        self._limit = limit
        self.epochs: LeaderEpochs | None = None  # which of them wrote what, once that is known
        self.has_damage = False  # a hole was found in one of the log's segments, if perhaps not any more
        self._opened: deque[Segment] = deque()

    def note(self, segment: Segment) -> None:
        self._opened.append(segment)
        if len(self._opened) > self._limit:
            self._opened.popleft().release()

    def forget(self, segment: Segment) -> None:
        """Hold on no longer to a segment that left its log, or the space of its deleted file would not be freed."""
        while segment in self._opened:
            self._opened.remove(segment)
