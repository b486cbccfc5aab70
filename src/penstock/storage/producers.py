"""What a partition remembers of its idempotent and transactional producers.

For every producer id: its epoch, its last five batches, where its open transaction began and how its last one ended. A
batch that repeats a remembered one is a duplicate and is answered with the offset of the first; any other must follow
on the last sequence number. Only what is in the same transaction can be repeated: a client that gave up on a batch and
aborted may number the next transaction's first batch as that one, and must not be told that it is stored.

A transactional batch opens a transaction, a marker ends it (KIP-98); a marker of a higher epoch also fences what the
producer sent before (KIP-890).

The table is a function of the log: `note` and `end` replay stored batches, and a snapshot at a segment's start spares
replaying the segments before it. Only forgetting goes by our clock: timestamps of records are the producer's, who may
be copying last year's data.

Sequence numbers count records and wrap from 2³¹ − 1 to 0. Format of the snapshot: docs/formats/producers.md.
"""

from __future__ import annotations

import struct
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

import crc32c

from penstock.errors import (
    CoordinatorFenced,
    DuplicateSequence,
    InvalidTxnState,
    OutOfOrderSequence,
    ProducerFenced,
)
from penstock.records import TRANSACTIONAL_BIT, BatchHeader, Marker
from penstock.storage.files import Files, read_file, replace_file

BATCHES_REMEMBERED: Final = 5
SEQUENCE_WRAP: Final = 1 << 31

_MAGIC: Final = b"PSPR"
_VERSION: Final = 2
_HEADER: Final = struct.Struct("<4sIqI")  # magic, version, offset, producers
# id, epoch, last timestamp, last seen, first offset of the open transaction, coordinator epoch, last marker, batches
_PRODUCER: Final = struct.Struct("<qhqqqiqB")
_BATCH: Final = struct.Struct("<iiq")  # first sequence, last sequence, base offset
_CRC: Final = struct.Struct("<I")
_JUST_NOW: Final = -1
NONE: Final = -1


class ProducedBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int


class OpenTransaction(NamedTuple):
    """A transaction that has written here and not ended yet."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp: int


class EndedTransaction(NamedTuple):
    """A transaction from its first batch to its marker, and the first offset that was still undecided after it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    is_commit: bool


class Producer:
    """One producer id on one partition."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "first_offset", "last_timestamp", "marker_offset", "seen_ms")

    def __init__(self, epoch: int, last_timestamp: int) -> None:
        self.epoch = epoch
        self.last_timestamp = last_timestamp
        self.seen_ms = _JUST_NOW  # when `expire` first found that it had written something new
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_REMEMBERED)
        self.first_offset = NONE  # of the open transaction
        self.coordinator_epoch = NONE  # of the last marker
        self.marker_offset = NONE  # of the last marker

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record in this epoch, -1 if there is none."""
        return self.batches[-1].last_sequence if self.batches else NONE


class ProducerTable:
    """All producers of one partition, and the transactions they have open."""

    __slots__ = ("_producers", "open")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        # First offsets by producer id. Transactions are added as they begin, so the first one began first.
        self.open: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def first_open(self) -> int | None:
        """Where the oldest open transaction began."""
        return next(iter(self.open.values()), None)

    def remembered(self) -> set[int]:
        """The base offsets of all batches that a retry could be told about, and of every producer's last marker."""
        offsets = {batch.base_offset for producer in self._producers.values() for batch in producer.batches}
        return offsets | {producer.marker_offset for producer in self._producers.values()}

    def items(self) -> list[tuple[int, Producer]]:
        return sorted(self._producers.items())

    def transactions(self) -> list[OpenTransaction]:
        """The open transactions, oldest first."""
        found = []
        for producer_id, first_offset in self.open.items():
            producer = self._producers[producer_id]
            found.append(OpenTransaction(producer_id, producer.epoch, first_offset, producer.last_timestamp))
        return found

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of this very epoch is open."""
        return producer_id in self.open and self._producers[producer_id].epoch == epoch

    def last_sequence_of(self, producer_id: int, epoch: int) -> int:
        """The sequence number of the producer's last record in this epoch, -1 if there is none."""
        producer = self._producers.get(producer_id)
        return NONE if producer is None or producer.epoch != epoch else producer.last_sequence

    def coordinator_epoch_of(self, producer_id: int) -> int:
        """The epoch of the coordinator that wrote the producer's last marker, -1 if none is known."""
        producer = self._producers.get(producer_id)
        return NONE if producer is None else producer.coordinator_epoch

    # -- judging ------------------------------------------------------------------------------------------------------

    def check(self, header: BatchHeader) -> int | None:
        """The base offset of the batch this one repeats, or None if it is the producer's next one.

        A producer that is not remembered may start anywhere: its past may have been expired or deleted. One that is
        known, but with nothing of its epoch, begins at 0. Batches without a sequence are the broker's own and never
        repeat.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        first, epoch, batches = header.base_sequence, header.producer_epoch, producer.batches
        if epoch < producer.epoch:
            raise _fenced(header.producer_id, epoch, producer.epoch)
        if producer.first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            raise InvalidTxnState(
                f"Producer {header.producer_id} has a transaction open since offset {producer.first_offset}; end it "
                "before you send anything outside of one."
            )
        if first < 0:
            return None
        if epoch > producer.epoch:
            if first != 0:
                raise OutOfOrderSequence(
                    f"Producer {header.producer_id} begins epoch {epoch} with sequence {first}; "
                    "a new epoch starts at 0."
                )
            return None
        last = header.last_sequence
        since = producer.marker_offset if header.attributes & TRANSACTIONAL_BIT else NONE
        for batch in batches:
            if batch.first_sequence == first and batch.last_sequence == last and batch.base_offset > since:
                return batch.base_offset
        expected = (batches[-1].last_sequence + 1) % SEQUENCE_WRAP if batches else 0
        if first == expected:
            return None
        if batches and first < batches[0].first_sequence and last < expected and batches[0].base_offset > since:
            raise DuplicateSequence(
                f"Producer {header.producer_id} repeats sequences {first} to {last}, which are stored already but no "
                "longer remembered well enough to name their offsets."
            )
        raise OutOfOrderSequence(
            f"Producer {header.producer_id} sent sequence {first} where {expected} comes next: a batch before it is "
            "missing."
        )

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Refuse a marker of a producer or a coordinator that has been replaced."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        if epoch < producer.epoch:
            raise _fenced(producer_id, epoch, producer.epoch)
        if coordinator_epoch < producer.coordinator_epoch:
            raise CoordinatorFenced(
                f"A marker of producer {producer_id} comes from coordinator epoch {coordinator_epoch}, but epoch "
                f"{producer.coordinator_epoch} has written one already. Another node coordinates this transaction now."
            )

    # -- replaying ----------------------------------------------------------------------------------------------------

    def note(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a stored batch of records."""
        producer_id = header.producer_id
        producer = self._producers.get(producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            producer = self._begin_epoch(producer_id, header.producer_epoch)
        producer.last_timestamp = header.max_timestamp
        producer.seen_ms = _JUST_NOW
        if header.base_sequence >= 0:
            producer.batches.append(ProducedBatch(header.base_sequence, header.last_sequence, base_offset))
        # An empty batch is what compaction left of one whose transaction had ended long before.
        if header.attributes & TRANSACTIONAL_BIT and producer.first_offset < 0 and header.count:
            producer.first_offset = self.open[producer_id] = base_offset

    def end(self, header: BatchHeader, base_offset: int, marker: Marker) -> EndedTransaction | None:
        """Remember a stored marker; the transaction that it ended, if one was open."""
        producer_id = header.producer_id
        producer = self._producers.get(producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            producer = self._begin_epoch(producer_id, header.producer_epoch)
        producer.last_timestamp = header.max_timestamp
        producer.seen_ms = _JUST_NOW
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.marker_offset = base_offset
        first_offset = self.open.pop(producer_id, None)
        if first_offset is None:
            return None
        producer.first_offset = NONE
        first_open = self.first_open
        stable = base_offset + 1 if first_open is None else first_open
        return EndedTransaction(producer_id, first_offset, base_offset, stable, marker.is_commit)

    def _begin_epoch(self, producer_id: int, epoch: int) -> Producer:
        producer = self._producers.setdefault(producer_id, Producer(epoch, NONE))
        producer.epoch = epoch
        producer.batches.clear()
        return producer

    def expire(self, now_ms: int, silence_ms: int) -> None:
        """Forget producers that have written nothing for ``silence_ms``, but none with an open transaction."""
        silent = []
        for producer_id, producer in self._producers.items():
            if producer.seen_ms == _JUST_NOW:
                producer.seen_ms = now_ms
            elif now_ms - producer.seen_ms > silence_ms and producer.first_offset < 0:
                silent.append(producer_id)
        for producer_id in silent:
            del self._producers[producer_id]

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def encode(self, offset: int) -> bytes:
        """The table as of ``offset``, for `load`."""
        parts = [_HEADER.pack(_MAGIC, _VERSION, offset, len(self._producers))]
        for producer_id, producer in self._producers.items():
            parts.append(
                _PRODUCER.pack(
                    producer_id,
                    producer.epoch,
                    producer.last_timestamp,
                    producer.seen_ms,
                    producer.first_offset,
                    producer.coordinator_epoch,
                    producer.marker_offset,
                    len(producer.batches),
                )
            )
            parts += [_BATCH.pack(*batch) for batch in producer.batches]
        body = b"".join(parts)
        return body + _CRC.pack(crc32c.crc32c(body))

    @classmethod
    def decode(cls, data: bytes, offset: int) -> ProducerTable | None:
        """The table from a snapshot, or None if it is damaged or of another offset."""
        body = data[: -_CRC.size]
        if len(body) < _HEADER.size or crc32c.crc32c(body) != _CRC.unpack_from(data, len(body))[0]:
            return None
        magic, version, stored_offset, count = _HEADER.unpack_from(body)
        if (magic, version, stored_offset) != (_MAGIC, _VERSION, offset):
            return None
        table = cls()
        position = _HEADER.size
        for _ in range(count):
            producer_id, epoch, last_timestamp, seen_ms, first, coordinator_epoch, marker_offset, batches = (
                _PRODUCER.unpack_from(body, position)
            )
            position += _PRODUCER.size
            producer = table._producers[producer_id] = Producer(epoch, last_timestamp)
            producer.seen_ms, producer.first_offset = seen_ms, first
            producer.coordinator_epoch, producer.marker_offset = coordinator_epoch, marker_offset
            for _ in range(batches):
                producer.batches.append(ProducedBatch(*_BATCH.unpack_from(body, position)))
                position += _BATCH.size
        opened = [(known.first_offset, number) for number, known in table._producers.items() if known.first_offset >= 0]
        table.open = {producer_id: first_offset for first_offset, producer_id in sorted(opened)}
        return table


def _fenced(producer_id: int, epoch: int, known: int) -> ProducerFenced:
    return ProducerFenced(
        f"Producer {producer_id} has epoch {epoch}, but epoch {known} has written already. Stop this instance: a newer "
        "one has taken over."
    )


def snapshot_path(directory: Path, offset: int) -> Path:
    return directory / f"{offset:020}.producers"


def save_snapshot(files: Files, directory: Path, offset: int, encoded: bytes) -> None:
    replace_file(files, snapshot_path(directory, offset), encoded)


def load_snapshot(files: Files, directory: Path, offset: int) -> ProducerTable | None:
    data = read_file(files, snapshot_path(directory, offset))
    return None if data is None else ProducerTable.decode(data, offset)
