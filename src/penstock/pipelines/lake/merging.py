"""Small files made one, in executors: the rows stay, their order by partition and offset is made new."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvalidLake
from penstock.pipelines.lake.catalog import DataFile, Range
from penstock.pipelines.lake.writing import ROW_SCHEMA, open_parquet, settle

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
