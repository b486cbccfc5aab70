"""The journal of joint transactions in memory."""

from __future__ import annotations

from tests.support import journal

from penstock.features.transactions.joint import records


class JointJournal(journal.MemoryJournal):
    """Changes of joint transactions, as records in memory."""

    def __init__(self) -> None:
        super().__init__(records)
