"""The journal of transactions in memory, for the records of joint ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.unit.transactions.journal import MemoryJournal

from penstock.broker.coordination.journal import Written
from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.transactions.joint.records import Change, from_record, to_record
from penstock.errors import DiskFull


class JointJournal(MemoryJournal):
    """Keeps records as bytes, as a log would, and can be as slow, full and broken as its parent."""

    def append(self, changes: Sequence[Any], at_ms: int, producer: ProducerIdentity | None = None) -> int:
        assert producer is None, "a transaction's own state is in no transaction"
        if self.failure is not None:
            raise self.failure
        if self.is_full:
            raise DiskFull("The test disk is full.")
        self.records += [to_record(change, self.end_offset + at, at_ms) for at, change in enumerate(changes)]
        if not self.is_slow:
            self.commit()
        return self.end_offset

    def replay(self) -> Iterator[Written[Any]]:
        for record in self.records:
            change = from_record(record)
            assert isinstance(change, Change), "nobody else writes here"
            yield Written(change, record.timestamp)
