"""The journal of transactions in memory, and partitions that can be out of reach."""

from __future__ import annotations

from collections.abc import Callable, Collection

from tests.support import journal

from penstock.features.transactions import records
from penstock.features.transactions.markers import EndMarker
from penstock.features.transactions.messages import Where


class MemoryJournal(journal.MemoryJournal):
    """Changes of transactions, as records in memory."""

    def __init__(self) -> None:
        super().__init__(records)


class MemoryMarkers:
    """Writes markers to partitions that are lists; those that are ``stuck`` take theirs when they are no longer."""

    def __init__(self, on_marker: Callable[[Where, EndMarker], None]) -> None:
        self._on_marker = on_marker
        self.stuck: set[Where] = set()
        self._rounds: list[tuple[EndMarker, set[Where], Callable[[], bool], Callable[[], None]]] = []

    def write(
        self, marker: EndMarker, partitions: Collection[Where], is_wanted: Callable[[], bool], done: Callable[[], None]
    ) -> None:
        self._rounds.append((marker, set(partitions), is_wanted, done))
        self.go_on()

    def go_on(self) -> None:
        """Write what can be written now."""
        rounds, self._rounds = self._rounds, []
        for marker, left, is_wanted, done in rounds:
            if not is_wanted():
                continue
            for where in sorted(left - self.stuck):
                left.discard(where)
                self._on_marker(where, marker)
            if left:
                self._rounds.append((marker, left, is_wanted, done))
            else:
                done()

    def crash(self) -> None:
        self._rounds.clear()
