"""Batches, logs and a plain retelling of what a log should hold, for the storage tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.errors import DamagedRecords
from penstock.records import BatchHeader, Codec, Record, check_batch, encode_batch, iter_batches, parse_header
from penstock.storage.config import UNLIMITED, LogConfig
from penstock.storage.files import Files, FileSlice
from penstock.storage.log import Log
from penstock.storage.producers import ProducerTable
from penstock.storage.ranges import OffsetRange

DIRECTORY = Path("/data/logs/orders/0")
SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=200, retention_ms=UNLIMITED)
COMPACTED = replace(SMALL, is_deleting=False, is_compacting=True, delete_retention_ms=1_000, min_dirty_ratio=0.0)


def make_batch(
    count: int = 1,
    *,
    value: bytes | None = b"value",
    key: bytes | None = b"key",
    timestamp: int = 1_000,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = 0,
    sequence: int = -1,
) -> memoryview:
    """A batch as a producer sends it: offsets from 0."""
    records = [Record(number, timestamp + number, key, value) for number in range(count)]
    batch = encode_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch if producer_id >= 0 else -1,
        base_sequence=sequence,
    )
    return memoryview(batch)


def append(log: Log, batch: memoryview, leader_epoch: int = 0) -> int:
    return log.append(batch, parse_header(batch), leader_epoch)


def fill(log: Log, batches: int, *, producer_id: int = -1) -> list[bytes]:
    """Append batches of one record each; what was stored."""
    stored = []
    for number in range(batches):
        sequence = number if producer_id >= 0 else -1
        batch = make_batch(
            value=b"value %d" % number, timestamp=1_000 + number, producer_id=producer_id, sequence=sequence
        )
        append(log, batch)
        stored.append(bytes(batch))
    return stored


def open_log(files: Files, config: LogConfig = SMALL) -> Log:
    return Log.open(files, DIRECTORY, config)


def read_past(log: Log, offset: int, max_bytes: int = 1 << 20) -> FileSlice | None:
    """Read, giving up what turns out to be damaged."""
    while True:
        try:
            return log.read(offset, max_bytes, log.end_offset)
        except DamagedRecords as error:
            log.lost = (*log.lost, OffsetRange(error.first_offset, error.next_offset))


def read_all(log: Log, max_bytes: int = 1 << 20) -> list[bytes]:
    """Every batch that the log serves, as a consumer gets it where no other replica has more: whole and in order."""
    found: list[bytes] = []
    offset = log.start_offset
    while (part := read_past(log, offset, max_bytes)) is not None:
        data = memoryview(part.read())
        assert len(data) == part.size
        assert part.size
        for position, header in iter_batches(data):
            batch = data[position : position + header.size]
            check_batch(batch)
            assert header.next_offset > offset, "a read never goes back"
            offset = header.next_offset
            found.append(bytes(batch))
        assert offset == parse_header(found[-1]).next_offset
    return found


def base_of(batch: bytes) -> int:
    return parse_header(batch).base_offset


def header_of(batch: bytes) -> BatchHeader:
    return parse_header(batch)


def producers_of(batches: list[bytes]) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
    """The producer table that these batches call for, by replaying them."""
    table = ProducerTable()
    for batch in batches:
        header = parse_header(batch)
        if header.is_idempotent:
            table.note(header, header.base_offset)
    return table_facts(table)


def table_facts(table: ProducerTable) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
    return [(number, known.epoch, [tuple(batch) for batch in known.batches]) for number, known in table.items()]
