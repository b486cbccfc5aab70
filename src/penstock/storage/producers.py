"""What a partition remembers of its idempotent producers, so that a retried batch is stored once.

For every producer id: its epoch and its last five batches. A batch that repeats one of them is a duplicate and is
answered with the offset of the first; any other must follow on the last sequence number. The table is a function of the
log: `note` replays stored batches, and a snapshot at a segment's start spares replaying the segments before it. Only
forgetting goes by our clock: timestamps of records are the producer's, who may be copying last year's data.

Sequence numbers count records and wrap from 2³¹ − 1 to 0. Format of the snapshot: docs/formats/producers.md.
"""

from __future__ import annotations

import struct
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

import crc32c

from penstock.errors import DuplicateSequence, OutOfOrderSequence, ProducerFenced
from penstock.records import BatchHeader
from penstock.storage.files import Files, read_file, replace_file

BATCHES_REMEMBERED: Final = 5
SEQUENCE_WRAP: Final = 1 << 31

_MAGIC: Final = b"PSPR"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sIqI")  # magic, version, offset, producers
_PRODUCER: Final = struct.Struct("<qhqqB")  # id, epoch, last timestamp, last seen, batches
_BATCH: Final = struct.Struct("<iiq")  # first sequence, last sequence, base offset
_CRC: Final = struct.Struct("<I")
_JUST_NOW: Final = -1


class ProducedBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int


class Producer:
    """One producer id on one partition."""

    __slots__ = ("batches", "epoch", "last_timestamp", "seen_ms")

    def __init__(self, epoch: int, last_timestamp: int) -> None:
        self.epoch = epoch
        self.last_timestamp = last_timestamp
        self.seen_ms = _JUST_NOW  # when `expire` first found that it had written something new
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_REMEMBERED)


class ProducerTable:
    """All producers of one partition."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def remembered(self) -> set[int]:
        """The base offsets of all batches that a retry could be told about."""
        return {batch.base_offset for producer in self._producers.values() for batch in producer.batches}

    def items(self) -> list[tuple[int, Producer]]:
        return sorted(self._producers.items())

    def check(self, header: BatchHeader) -> int | None:
        """The base offset of the batch this one repeats, or None if it is the producer's next one.

        A producer nobody remembers may start anywhere: its past may have been expired or deleted.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        first = header.base_sequence
        if header.producer_epoch < producer.epoch:
            raise ProducerFenced(
                f"Producer {header.producer_id} has epoch {header.producer_epoch}, but epoch {producer.epoch} has "
                "written already. Stop this instance: a newer one has taken over."
            )
        if header.producer_epoch > producer.epoch:
            if first != 0:
                raise OutOfOrderSequence(
                    f"Producer {header.producer_id} begins epoch {header.producer_epoch} with sequence {first}; "
                    "a new epoch starts at 0."
                )
            return None
        if not producer.batches:
            return None
        last = header.last_sequence
        for batch in producer.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch.base_offset
        expected = (producer.batches[-1].last_sequence + 1) % SEQUENCE_WRAP
        if first == expected:
            return None
        if first < producer.batches[0].first_sequence and last < expected:
            raise DuplicateSequence(
                f"Producer {header.producer_id} repeats sequences {first} to {last}, which are stored already but no "
                "longer remembered well enough to name their offsets."
            )
        raise OutOfOrderSequence(
            f"Producer {header.producer_id} sent sequence {first} where {expected} comes next: a batch before it is "
            "missing."
        )

    def note(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a stored batch."""
        producer = self._producers.get(header.producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            producer = self._producers[header.producer_id] = Producer(header.producer_epoch, header.max_timestamp)
        producer.last_timestamp = header.max_timestamp
        producer.seen_ms = _JUST_NOW
        if not header.is_control:
            producer.batches.append(ProducedBatch(header.base_sequence, header.last_sequence, base_offset))

    def expire(self, now_ms: int, silence_ms: int) -> None:
        """Forget producers that have written nothing for ``silence_ms``."""
        silent = []
        for producer_id, producer in self._producers.items():
            if producer.seen_ms == _JUST_NOW:
                producer.seen_ms = now_ms
            elif now_ms - producer.seen_ms > silence_ms:
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
                    producer_id, producer.epoch, producer.last_timestamp, producer.seen_ms, len(producer.batches)
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
            producer_id, epoch, last_timestamp, seen_ms, batches = _PRODUCER.unpack_from(body, position)
            position += _PRODUCER.size
            producer = table._producers[producer_id] = Producer(epoch, last_timestamp)
            producer.seen_ms = seen_ms
            for _ in range(batches):
                producer.batches.append(ProducedBatch(*_BATCH.unpack_from(body, position)))
                position += _BATCH.size
        return table


def snapshot_path(directory: Path, offset: int) -> Path:
    return directory / f"{offset:020}.producers"


def save_snapshot(files: Files, directory: Path, offset: int, encoded: bytes) -> None:
    replace_file(files, snapshot_path(directory, offset), encoded)


def load_snapshot(files: Files, directory: Path, offset: int) -> ProducerTable | None:
    data = read_file(files, snapshot_path(directory, offset))
    return None if data is None else ProducerTable.decode(data, offset)
