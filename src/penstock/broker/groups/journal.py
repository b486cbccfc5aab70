"""Where a shard keeps its changes: a port, and the partition that stands behind it by default."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from penstock.broker.groups.records import Change, from_record, to_record
from penstock.broker.partition import Partition
from penstock.errors import CorruptRecords, PenstockError
from penstock.records import Codec, decode_records, encode_batch, parse_header

log = logging.getLogger(__name__)

# Members of a large group say much the same, so a generation of it compresses to a fraction.
_COMPRESS_FROM_BYTES: Final = 16 * 1024


class Journal(Protocol):
    """An ordered, durable list of changes."""

    @property
    def end_offset(self) -> int:
        """Where the next change goes."""

    def append(self, changes: Sequence[Change], at_ms: int) -> int:
        """Write changes, all or none; the offset after the last one. An error means that none was written."""

    def when_committed(self, offset: int, done: Callable[[PenstockError | None], None]) -> None:
        """Call ``done`` once everything before ``offset`` is safe, at once if it is, or with what went wrong."""

    def replay(self) -> Iterator[tuple[Change, int]]:
        """Every change that is not superseded, in order, each with when it was written. Runs in any thread."""


class PartitionJournal:
    """A partition of the offsets topic as a journal."""

    def __init__(self, partition: Partition, *, syncs: bool) -> None:
        self._partition = partition
        self._syncs = syncs

    @property
    def end_offset(self) -> int:
        return self._partition.log.end_offset

    def append(self, changes: Sequence[Change], at_ms: int) -> int:
        records = [to_record(change, at, at_ms) for at, change in enumerate(changes)]
        size = sum(len(record.value or b"") for record in records)
        batch = encode_batch(records, codec=Codec.ZSTD if size >= _COMPRESS_FROM_BYTES else Codec.NONE)
        return self._partition.append(memoryview(batch), at_ms, is_durable=self._syncs).next_offset

    def when_committed(self, offset: int, done: Callable[[PenstockError | None], None]) -> None:
        self._partition.when_committed(offset, done)

    def replay(self) -> Iterator[tuple[Change, int]]:
        stored = self._partition.log
        for batch in stored.batches(stored.start_offset):
            data = memoryview(batch.read())
            if parse_header(data).is_control:
                continue
            for record in decode_records(data):
                try:
                    yield from_record(record), record.timestamp
                except CorruptRecords as error:  # nobody's groups should be held up by what somebody else wrote
                    log.error("%s is left out: %s", self._partition.id, error.message)
