"""The companion log as a journal: not every change has to be synced, and not every record is needed for ever.

A lease is committed before it is told, and that is enough: if power fails everywhere at once it ends early, and the
message is delivered once more. What says that a message is done with, or how it failed, is as durable as the topic.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from penstock.broker.coordination.journal import Decided, PartitionJournal, Written
from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.partition import Partition
from penstock.broker.queues.core import records
from penstock.broker.queues.core.records import Cause, Change, Event, Extended, Forgotten, Leased, Settled, Snapshot
from penstock.errors import CorruptRecords
from penstock.records import Codec, decode_records, encode_batch, parse_header, read_marker

log = logging.getLogger(__name__)

_COMPRESS_FROM_BYTES: Final = 16 * 1024


class QueueJournal(PartitionJournal[Change]):
    """One partition of a companion. ``needed`` tells from where on the records of each group are needed."""

    def __init__(self, partition: Partition, *, syncs: bool) -> None:
        super().__init__(partition, records, syncs=syncs)
        self.partition = partition
        self.needed: dict[str, int] = {}
        self._prepared: tuple[Change, bytearray] | None = None

    def prepare(self, change: Change, at_ms: int) -> None:
        """Encode a change that is appended by itself soon. Runs in any thread, one at a time."""
        self._prepared = change, _encode([change], at_ms)

    @property
    def epoch(self) -> int:
        """Of the leader who writes: no other has the same."""
        return self.partition.leader_epoch

    def append(self, changes: Sequence[Change], at_ms: int, producer: ProducerIdentity | None = None) -> int:
        prepared = self._prepared
        if prepared is not None and len(changes) == 1 and changes[0] is prepared[0]:
            batch, self._prepared = prepared[1], None
        else:
            batch = _encode(changes, at_ms, producer)
        is_durable = self._syncs and not all(_may_be_lost(change.event) for change in changes)
        written = self.partition.append(memoryview(batch), at_ms, is_durable=is_durable, is_internal=True)
        for at, change in enumerate(changes, written.base_offset):
            self._note(change, at)
        return written.next_offset

    def replay(self) -> Iterator[Written[Change] | Decided]:
        """All that counts: of each group its last snapshot, and what is not in that.

        A snapshot may stand behind changes that came while it was made. It is told of where it belongs.
        """
        entries = list(self._read())
        snapshots: dict[str, tuple[int, Written[Change]]] = {}
        for offset, entry in entries:
            if isinstance(entry, Written) and isinstance(entry.change.event, Snapshot):
                snapshots[entry.change.group] = (_upto(entry.change.event, offset), entry)
        waiting = deque(sorted(snapshots.values(), key=itemgetter(0)))
        for offset, entry in entries:
            while waiting and waiting[0][0] <= offset:
                yield waiting.popleft()[1]
            if isinstance(entry, Decided):
                yield entry
            elif not isinstance(entry.change.event, Snapshot):
                upto, _ = snapshots.get(entry.change.group, (0, None))
                if offset >= upto:
                    yield entry

    def _read(self) -> Iterator[tuple[int, Written[Change] | Decided]]:
        stored = self.partition.log
        for batch in stored.batches(stored.start_offset):
            data = memoryview(batch.read())
            header = parse_header(data)
            if header.is_control:
                yield header.base_offset, Decided(header.producer_id, read_marker(data).is_commit)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for record in decode_records(data):
                if record.offset < stored.start_offset:
                    continue
                try:
                    change = records.from_record(record)
                except CorruptRecords as error:  # nobody should be held up by what somebody else wrote
                    log.error("%s is left out: %s", self.partition.id, error.message)
                    continue
                self._note(change, record.offset)
                yield record.offset, Written(change, record.timestamp, producer_id)

    def _note(self, change: Change, offset: int) -> None:
        event = change.event
        if isinstance(event, Snapshot):
            self.needed[change.group] = _upto(event, offset)
        elif isinstance(event, Forgotten):
            self.needed.pop(change.group, None)
        else:
            self.needed.setdefault(change.group, offset)


def _encode(changes: Sequence[Change], at_ms: int, producer: ProducerIdentity | None = None) -> bytearray:
    rows = [records.to_record(change, at, at_ms) for at, change in enumerate(changes)]
    size = sum(len(row.value or b"") for row in rows)
    codec = Codec.ZSTD if size >= _COMPRESS_FROM_BYTES else Codec.NONE
    if producer is None:
        return encode_batch(rows, codec=codec)
    return encode_batch(
        rows, codec=codec, producer_id=producer.producer_id, producer_epoch=producer.epoch, is_transactional=True
    )


def _upto(snapshot: Snapshot, offset: int) -> int:
    """Where what a snapshot stands for ends; it is itself at ``offset``."""
    return snapshot.upto if snapshot.upto >= 0 else offset


def _may_be_lost(event: Event) -> bool:
    """Whether losing the change with the power of all nodes costs no more than another delivery."""
    if isinstance(event, Settled):
        return event.cause is Cause.EXPIRY and not event.dying
    return isinstance(event, (Leased, Extended))
