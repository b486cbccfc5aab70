"""Files of a lake as executors write them: rows come in Arrow, and leave as Parquet by topic, date and hour.

Rows that are in the lake already are skipped. Small files are merged into one with their rows in order of partition and
offset.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvalidLake
from penstock.pipelines.lake.catalog import DataFile, Range, TopicFact, sync_directory

ROW_SCHEMA: Final = pa.schema(
    [
        ("generation", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)

_HOUR_US: Final = 3_600_000_000
_GROUP_BYTES: Final = 32 * 1024 * 1024
_OPEN_MAX: Final = 48

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class LakeBatch(msgspec.Struct, frozen=True):
    """A batch to be written: which, of which topics, and how far each partition is in the lake already."""

    number: int
    now_ms: int  # stands in for the time of messages that have none
    topics: dict[str, TopicFact]
    reached: list[tuple[str, int, int, int]]  # topic, generation, partition, offset


class BatchFiles:
    """Writes what a task has of a batch."""

    def __init__(self, lake: Path, batch: LakeBatch) -> None:
        self._lake = lake
        self._batch = batch
        self._reached = {(topic, generation, at): offset for topic, generation, at, offset in batch.reached}

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[DataFile]:
        """Write rows of ``topic``, the columns of a lake but for ``generation``, and ``checksum``."""
        written: list[DataFile] = []
        open_files: dict[tuple[str, int], _OpenFile] = {}
        for batch in batches:
            for topic, hour, rows in self._parted(batch):
                at = (topic, hour)
                if at not in open_files:
                    if len(open_files) >= _OPEN_MAX:
                        written.append(open_files.pop(next(iter(open_files))).close())
                    open_files[at] = _OpenFile(self._lake, self._batch.topics[topic], hour, self._batch.number)
                open_files[at].add(rows)
        return written + [file.close() for file in open_files.values()]

    def _parted(self, batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        names = batch.column("topic").dictionary_encode()
        partitions = _numbers(batch.column("partition"))
        offsets = _numbers(batch.column("offset"))
        timestamps = _numbers(batch.column("timestamp").cast(pa.int64()).fill_null(self._batch.now_ms * 1000))
        for code, name in enumerate(names.dictionary.to_pylist()):
            is_here = _numbers(names.indices) == code
            generation = self._batch.topics[name].generation
            for partition in np.unique(partitions[is_here]):
                reached = self._reached.get((name, generation, int(partition)), 0)
                is_here &= (partitions != partition) | (offsets >= reached)
            hours = timestamps // _HOUR_US
            for hour in np.unique(hours[is_here]):
                yield name, int(hour), batch.filter(pa.array(is_here & (hours == hour)))


@dataclass(slots=True)
class _Seen:
    """A range while it grows."""

    first: int
    last: int
    rows: int = 0
    checksum: int = 0
    first_ms: int = 2**63 - 1
    last_ms: int = 0

    def range_of(self, partition: int) -> Range:
        return Range(
            partition=partition,
            first=self.first,
            last=self.last,
            rows=self.rows,
            checksum=f"{self.checksum:016x}",
            first_ms=self.first_ms,
            last_ms=self.last_ms,
        )


@dataclass(slots=True)
class _OpenFile:
    lake: Path
    topic: TopicFact
    hour: int
    batch: int
    _rows: list[pa.RecordBatch] = field(default_factory=list)
    _bytes: int = 0
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _path: str = ""
    _writer: Any = None

    def add(self, rows: pa.RecordBatch) -> None:
        self._note(rows)
        count = len(rows)
        columns = [pa.array(np.full(count, self.topic.generation, np.int32))]
        columns += [rows.column(column.name).cast(column.type) for column in list(ROW_SCHEMA)[1:]]
        self._rows.append(pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA))
        self._bytes += rows.nbytes
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def _note(self, rows: pa.RecordBatch) -> None:
        partitions, offsets = _numbers(rows.column("partition")), _numbers(rows.column("offset"))
        timestamps = _numbers(rows.column("timestamp").cast(pa.int64()).fill_null(0)) // 1000
        checksums = _numbers(rows.column("checksum")).view(np.uint64)
        for partition in np.unique(partitions):
            is_here = partitions == partition
            low, high = int(offsets[is_here].min()), int(offsets[is_here].max())
            seen = self._seen.setdefault(int(partition), _Seen(low, high))
            seen.first, seen.last = min(seen.first, low), max(seen.last, high)
            seen.rows += int(is_here.sum())
            seen.checksum ^= int(np.bitwise_xor.reduce(checksums[is_here]))
            seen.first_ms = min(seen.first_ms, int(timestamps[is_here].min()))
            seen.last_ms = max(seen.last_ms, int(timestamps[is_here].max()))

    def _flush(self) -> None:
        if self._writer is None:
            self._path = path_of(self.topic.name, self.hour, f"{self.batch:010d}")
            self._writer = open_parquet(self.lake / self._path)
        self._writer.write_table(pa.Table.from_batches(self._rows).combine_chunks())
        self._rows, self._bytes = [], 0

    def close(self) -> DataFile:
        if self._rows:
            self._flush()
        self._writer.close()
        size = settle(self.lake / self._path)
        ranges = [seen.range_of(partition) for partition, seen in sorted(self._seen.items())]
        return DataFile(
            path=self._path,
            topic=self.topic.name,
            generation=self.topic.generation,
            rows=sum(each.rows for each in ranges),
            bytes=size,
            ranges=ranges,
        )


def path_of(topic: str, hour: int, lead: str) -> str:
    """A path that no other task takes, for messages of one hour (counted from 1970)."""
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    directory = f"topic={topic}/date={moment:%Y-%m-%d}/hour={moment:%H}"
    return f"{directory}/{lead}-{uuid.uuid4().hex[:12]}.parquet"


def open_parquet(path: Path) -> pq.ParquetWriter:
    path.parent.mkdir(parents=True, exist_ok=True)
    return pq.ParquetWriter(path, ROW_SCHEMA, compression="zstd")


def settle(path: Path) -> int:
    """Make a file that was written survive a power cut; its size."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_directory(path.parent)
    return path.stat().st_size


def _numbers(column: pa.Array) -> Numbers:
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)


_ROWS_A_GROUP: Final = 100_000


def merge(lake: Path, group: Sequence[DataFile]) -> DataFile:
    """A file with the rows of all of these, which are of the same topic and hour."""
    first = group[0]
    directory = first.path.rsplit("/", 1)[0]
    rows = pa.concat_tables(pq.read_table(lake / file.path, schema=ROW_SCHEMA, partitioning=None) for file in group)
    expected = sum(file.rows for file in group)
    if len(rows) != expected:
        raise InvalidLake(f"Files of {lake / directory} have {len(rows)} rows, not {expected}.")
    rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
    path = f"{directory}/merged-{uuid.uuid4().hex[:12]}.parquet"
    with open_parquet(lake / path) as writer:
        writer.write_table(rows, row_group_size=_ROWS_A_GROUP)
    return DataFile(
        path=path,
        topic=first.topic,
        generation=first.generation,
        rows=expected,
        bytes=settle(lake / path),
        ranges=list(merged_ranges(each for file in group for each in file.ranges)),
    )


def merged_ranges(ranges: Iterable[Range]) -> Iterator[Range]:
    """One for each partition, that covers all of them."""
    by_partition: dict[int, list[Range]] = {}
    for each in ranges:
        by_partition.setdefault(each.partition, []).append(each)
    for partition, some in sorted(by_partition.items()):
        checksum = 0
        for each in some:
            checksum ^= int(each.checksum, 16)
        yield Range(
            partition=partition,
            first=min(each.first for each in some),
            last=max(each.last for each in some),
            rows=sum(each.rows for each in some),
            checksum=f"{checksum:016x}",
            first_ms=min(each.first_ms for each in some),
            last_ms=max(each.last_ms for each in some),
        )
