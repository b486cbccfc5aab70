"""The journal of groups in memory."""

from __future__ import annotations

from tests.support import journal

from penstock.features.groups import records


class MemoryJournal(journal.MemoryJournal):
    """Changes of groups, as records in memory."""

    def __init__(self) -> None:
        super().__init__(records)
