"""A partition of ``__schedules`` as a journal: it notes where each change is, and where whoever reads it begins.

Every record's key is the *anchor*, the offset of the first part of the last snapshot. A snapshot is written in many
batches with nothing in between, and becomes the anchor with its last one: if that is missing, nothing has happened.
Batches are not compressed, because single schedules are read out of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from penstock.broker.coordination.journal import Decided, Written
from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.partition import Partition
from penstock.broker.schedules.batches import events_of
from penstock.broker.schedules.records import Change, Event, Fired, anchor_of, to_record
from penstock.errors import CorruptRecords, PenstockError
from penstock.records import Record, decode_records, encode_batch

log = logging.getLogger(__name__)


class ScheduleJournal:
    """One shard's log. ``on_noted`` hears of every change that is written, with its place."""

    def __init__(self, partition: Partition, *, syncs: bool) -> None:
        self.partition = partition
        self._syncs = syncs
        self.anchor = 0
        self.on_noted: Callable[[Change], None] = lambda _: None

    @property
    def end_offset(self) -> int:
        return self.partition.log.end_offset

    def append(self, changes: Sequence[Change], at_ms: int, producer: ProducerIdentity | None = None) -> int:
        """Write changes as one batch, all or none, and note in each where it is."""
        assert producer is None, "schedules are written in no transaction"
        is_durable = self._syncs and not all(isinstance(change.event, Fired) for change in changes)
        return self._append(changes, at_ms, self.anchor, is_durable=is_durable)

    def append_snapshot(self, changes: Sequence[Change], at_ms: int) -> int:
        """Write a snapshot, a batch for each part. An error leaves everything as it was before."""
        first = self.end_offset
        for change in changes[:-1]:
            self._append([change], at_ms, self.anchor, is_durable=False)
        end = self._append(changes[-1:], at_ms, first, is_durable=self._syncs)
        self.anchor = first
        return end

    def _append(self, changes: Sequence[Change], at_ms: int, anchor: int, *, is_durable: bool) -> int:
        records = [to_record(change, at, at_ms, anchor) for at, change in enumerate(changes)]
        batch = memoryview(encode_batch(records))
        written = self.partition.append(batch, at_ms, is_durable=is_durable, is_internal=True)
        for at, change in enumerate(changes, written.base_offset):
            change.offset = at
            self.on_noted(change)
        return written.next_offset

    def when_committed(self, offset: int, done: Callable[[PenstockError | None], None]) -> None:
        self.partition.when_committed(offset, done)

    # -- reading ------------------------------------------------------------------------------------------------------

    def replay(self) -> Iterator[Written[Change] | Decided]:
        for offset, at_ms, event in self.read():
            yield Written(Change(event, offset), at_ms)

    def read(self) -> Iterator[tuple[int, int, Event]]:
        """Everything from the anchor on: offset, time and event. Runs in any thread."""
        self.anchor = self._last_anchor()
        return self._read(max(self.anchor, self.partition.log.start_offset))

    def _last_anchor(self) -> int:
        """What the last record says; without one, the beginning of the log."""
        stored = self.partition.log
        last: Record | None = None
        if stored.end_offset > stored.start_offset:
            for batch in stored.batches(stored.end_offset - 1):
                last = decode_records(batch.read())[-1]
        if last is None:
            return stored.start_offset
        try:
            return anchor_of(last)
        except CorruptRecords as error:
            log.error("%s is read from its beginning: %s", self.partition.id, error.message)
            return stored.start_offset

    def _read(self, begin: int) -> Iterator[tuple[int, int, Event]]:
        for batch in self.partition.log.batches(begin):
            for found in events_of(memoryview(batch.read())):
                if found[0] >= begin:
                    yield found

    def events(self, begin: int, end: int) -> Iterator[tuple[int, Event]]:
        """What is written between two offsets, with its place."""
        for offset, _, event in self._read(begin):
            if offset >= end:
                return
            yield offset, event
