"""A journal and partitions in memory that can be slow, full, broken and out of reach."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from penstock.broker.coordination.journal import Written
from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.transactions.markers import Marker
from penstock.broker.transactions.messages import Where
from penstock.broker.transactions.records import Change, from_record, to_record
from penstock.errors import DiskFull, LogFailed, PenstockError
from penstock.records import Record

Done = Callable[[PenstockError | None], None]


class MemoryJournal:
    """Keeps records as bytes, as a log would. What is written is committed at once unless ``is_slow``."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.committed = 0
        self.is_slow = False
        self.is_full = False
        self.failure: LogFailed | None = None
        self._waiting: list[tuple[int, Done]] = []

    @property
    def end_offset(self) -> int:
        return len(self.records)

    def append(self, changes: Sequence[Change], at_ms: int, producer: ProducerIdentity | None = None) -> int:
        assert producer is None, "a transaction's own state is in no transaction"
        if self.failure is not None:
            raise self.failure
        if self.is_full:
            raise DiskFull("The test disk is full.")
        self.records += [to_record(change, self.end_offset + at, at_ms) for at, change in enumerate(changes)]
        if not self.is_slow:
            self.commit()
        return self.end_offset

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

    def replay(self) -> Iterator[Written[Change]]:
        for record in self.records:
            yield Written(from_record(record), record.timestamp)


class MemoryMarkers:
    """Writes markers to partitions that are lists; those that are ``stuck`` take theirs when they are no longer."""

    def __init__(self, on_marker: Callable[[Where, Marker], None]) -> None:
        self._on_marker = on_marker
        self.stuck: set[Where] = set()
        self._rounds: list[tuple[Marker, set[Where], Callable[[], bool], Callable[[], None]]] = []

    def write(
        self, marker: Marker, partitions: Collection[Where], is_wanted: Callable[[], bool], done: Callable[[], None]
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
