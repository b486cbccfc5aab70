"""The companion log as a journal: not every change has to be synced, and not every record is needed for ever.

A lease is committed before it is told, and that is enough: if power fails everywhere at once it ends early, and the
message is delivered once more. What says that a message is done with, or how it failed, is as durable as the topic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.broker.coordination.journal import Decided, PartitionJournal, Written
from penstock.broker.coordination.messages import ProducerIdentity
from penstock.broker.partition import Partition
from penstock.broker.queues import records
from penstock.broker.queues.records import Cause, Change, Event, Extended, Forgotten, Leased, Settled, Snapshot
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

    def append(self, changes: Sequence[Change], at_ms: int, producer: ProducerIdentity | None = None) -> int:
        rows = [records.to_record(change, at, at_ms) for at, change in enumerate(changes)]
        size = sum(len(row.value or b"") for row in rows)
        codec = Codec.ZSTD if size >= _COMPRESS_FROM_BYTES else Codec.NONE
        if producer is None:
            batch = encode_batch(rows, codec=codec)
        else:
            batch = encode_batch(
                rows,
                codec=codec,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                is_transactional=True,
            )
        is_durable = self._syncs and not all(_may_be_lost(change.event) for change in changes)
        written = self.partition.append(memoryview(batch), at_ms, is_durable=is_durable, is_internal=True)
        for at, change in enumerate(changes, written.base_offset):
            self._note(change, at)
        return written.next_offset

    def replay(self) -> Iterator[Written[Change] | Decided]:
        """All that counts: of each group what comes from its last snapshot on."""
        entries = list(self._read())
        snapshots = {
            entry.change.group: at
            for at, entry in enumerate(entries)
            if isinstance(entry, Written) and isinstance(entry.change.event, Snapshot)
        }
        for at, entry in enumerate(entries):
            if isinstance(entry, Decided) or at >= snapshots.get(entry.change.group, 0):
                yield entry

    def _read(self) -> Iterator[Written[Change] | Decided]:
        stored = self.partition.log
        for batch in stored.batches(stored.start_offset):
            data = memoryview(batch.read())
            header = parse_header(data)
            if header.is_control:
                yield Decided(header.producer_id, read_marker(data).is_commit)
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
                yield Written(change, record.timestamp, producer_id)

    def _note(self, change: Change, offset: int) -> None:
        event = change.event
        if isinstance(event, Snapshot):
            self.needed[change.group] = offset
        elif isinstance(event, Forgotten):
            self.needed.pop(change.group, None)
        else:
            self.needed.setdefault(change.group, offset)


def _may_be_lost(event: Event) -> bool:
    """Whether losing the change with the power of all nodes costs no more than another delivery."""
    if isinstance(event, Settled):
        return event.cause is Cause.EXPIRY and not event.dying
    return isinstance(event, (Leased, Extended))
