"""A journal of a coordinator in memory that can be slow, full and broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.errors import DiskFull, LogFailed, PenstockError
from penstock.machines.journal import Decided, Format, Written
from penstock.machines.messages import ProducerIdentity
from penstock.records import Record

Done = Callable[[PenstockError | None], None]


class MemoryJournal:
    """Keeps records as bytes, as a log would. What is written is committed at once unless ``is_slow``."""

    def __init__(self, form: Format[Any]) -> None:
        self._form = form
        self.records: list[Record | Decided] = []
        self._producers: dict[int, int] = {}  # by offset
        self.committed = 0
        self.is_slow = False
        self.is_full = False
        self.failure: LogFailed | None = None
        self._waiting: list[tuple[int, Done]] = []

    @property
    def end_offset(self) -> int:
        return len(self.records)

    def append(self, changes: Sequence[Any], at_ms: int, producer: ProducerIdentity | None = None) -> int:
        if self.failure is not None:
            raise self.failure
        if self.is_full:
            raise DiskFull("The test disk is full.")
        producer_id = -1 if producer is None else producer.producer_id
        self._producers.update(dict.fromkeys(range(self.end_offset, self.end_offset + len(changes)), producer_id))
        self.records += [self._form.to_record(change, self.end_offset + at, at_ms) for at, change in enumerate(changes)]
        if not self.is_slow:
            self.commit()
        return self.end_offset

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Write a marker, as whoever coordinates the transaction does."""
        self.records.append(Decided(producer_id, is_commit))
        if not self.is_slow:
            self.commit()

    def when_committed(self, offset: int, done: Done) -> None:
        if self.committed >= offset:
            done(None)
        elif self.failure is not None:
            done(self.failure)
        else:
            self._waiting.append((offset, done))

    def commit(self) -> None:
        """Make durable what is written, and tell whoever waits for it, in order."""
        self.committed = self.end_offset
        while self._waiting and self._waiting[0][0] <= self.committed:
            self._waiting.pop(0)[1](None)

    def fail(self) -> None:
        """Lose what was not committed, and take no more."""
        self.failure = LogFailed("The test disk fails.")
        del self.records[self.committed :]
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            done(self.failure)

    def crash(self) -> None:
        """What a new process finds: all that was committed, and nobody who waits."""
        del self.records[self.committed :]
        self._waiting.clear()
        self.failure = None
        self.is_full = self.is_slow = False

    def replay(self) -> Iterator[Written[Any] | Decided]:
        for at, record in enumerate(self.records):
            if isinstance(record, Decided):
                yield record
            else:
                yield Written(self._form.from_record(record), record.timestamp, self._producers.get(at, -1))
