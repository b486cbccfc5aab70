"""Many small files of an hour made one: the rows stay, their order by partition and offset is made new."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.pipelines.lake.catalog import Catalog, DataFile, Entry
from penstock.pipelines.lake.sink import write_to_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Limits:
    """Files below ``small_bytes`` are merged, up to about ``target_bytes``, where there are ``files_min`` of them."""

    small_bytes: int = 32 * 1024 * 1024
    target_bytes: int = 128 * 1024 * 1024
    files_min: int = 4
    grace_ms: int = 3_600_000  # for as long, readers that began before find the old files


def compact(spark: SparkSession, catalog: Catalog, limits: Limits, now_ms: int) -> int:
    """Merge what is small, and remove what nobody reads any more; how many files were merged."""
    groups = list(mergeable(catalog.files.values(), limits))
    if groups:
        removed = [file.path for group in groups for file in group]
        entry = Entry(kind="compaction", at_ms=now_ms, removed=removed)
        rows = [(msgspec.json.encode(group).decode(),) for group in groups]
        write_to_lake(spark.createDataFrame(rows, "files STRING").repartition(len(groups)), catalog, entry)
    sweep(catalog, limits, now_ms)
    return sum(len(group) for group in groups)


def mergeable(files: Iterable[DataFile], limits: Limits) -> Iterator[list[DataFile]]:
    """Small files of the same hour, so many that merging them is worth it."""
    hours: dict[tuple[str, int], list[DataFile]] = {}
    for file in files:
        if file.bytes < limits.small_bytes:
            hours.setdefault((file.path.rsplit("/", 1)[0], file.generation), []).append(file)
    for _, small in sorted(hours.items()):
        group: list[DataFile] = []
        size = 0
        for file in sorted(small, key=lambda each: each.path):
            group.append(file)
            size += file.bytes
            if size >= limits.target_bytes:
                yield group
                group, size = [], 0
        if len(group) >= limits.files_min:
            yield group


def sweep(catalog: Catalog, limits: Limits, now_ms: int) -> None:
    """Remove files that were merged, and those of tasks that died, once nobody can be reading them."""
    for path in catalog.lake.glob("topic=*/date=*/hour=*/*.parquet"):
        name = str(path.relative_to(catalog.lake))
        if name in catalog.files:
            continue
        try:
            since_ms = catalog.removed.get(name) or int(path.stat().st_mtime * 1000)
            if now_ms - since_ms >= limits.grace_ms:
                path.unlink()
        except FileNotFoundError:
            continue
