"""Batches of a stream into a lake, each message once; and many small files of an hour merged into one.

What is in the lake is what its catalog says. One entry of the catalog is written for each batch, as a whole. A batch
that is run again finds its offsets there and adds nothing, whichever checkpoint it comes from.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.pipelines.lake.catalog import CHECKSUM, Catalog, CatalogEntry, DataFile, TopicFact
from penstock.pipelines.lake.settings import kept_settings
from penstock.pipelines.lake.sink import write_to_lake
from penstock.pipelines.lake.writing import LakeBatch
from penstock.spark.reading.cluster import Cluster
from penstock.spark.reading.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Archiver:
    """Puts batches into a lake. It may be sent to another process, so it keeps little."""

    def __init__(
        self, lake: Path, source: Mapping[str, str], limits: Limits, *, writers: int = 0, compact_every: int = 0
    ) -> None:
        self._lake = lake
        self._source = dict(source)
        self._limits = limits
        self._writers = writers
        self._compact_every = compact_every
        self._catalog: Catalog | None = None
        self._topics: dict[str, TopicFact] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_catalog": None, "_topics": {}}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Archive a batch."""
        from pyspark.sql import functions as sql

        if self._catalog is None:
            self._catalog = Catalog.load(self._lake)
        catalog = self._catalog
        # Asked for before anything is read: reading fails if a topic is replaced after that.
        topics = self._facts(catalog)
        now_ms = _now_ms()
        reached = [(*where, offset) for where, offset in catalog.reached.items() if where[0] in topics]
        entry = CatalogEntry(kind="batch", at_ms=now_ms, topics=list(topics.values()))
        summed = rows.withColumn("checksum", sql.expr(CHECKSUM))
        if self._writers:
            summed = summed.coalesce(self._writers)
        write_to_lake(summed, catalog, entry, LakeBatch(batch, now_ms, topics, reached))
        if self._compact_every and batch % self._compact_every == self._compact_every - 1:
            compact(rows.sparkSession, catalog, self._limits, _now_ms())

    def tidy(self, spark: SparkSession) -> int:
        """Merge small files; how many."""
        return compact(spark, Catalog.load(self._lake), self._limits, _now_ms())

    def _facts(self, catalog: Catalog) -> dict[str, TopicFact]:
        options = SourceOptions.of(self._source, is_streaming=True)
        reaches = Cluster(options).reaches()
        return {
            name: catalog.fact_of(
                name, reach.topic_id, max(reach.partitions, default=-1) + 1, kept_settings(options.servers, name)
            )
            for name, reach in reaches.items()
        }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Files below ``small_bytes`` are merged, up to about ``target_bytes``, where there are ``files_min`` of them."""

    small_bytes: int = 32 * 1024 * 1024
    target_bytes: int = 128 * 1024 * 1024
    files_min: int = 4
    grace_ms: int = 3_600_000  # for as long, readers that began before find the old files


def compact(spark: SparkSession, catalog: Catalog, limits: Limits, now_ms: int) -> int:
    """Merge small files, and remove those that are no longer read; how many files were merged."""
    groups = list(mergeable(catalog.files.values(), limits))
    if groups:
        removed = [file.path for group in groups for file in group]
        entry = CatalogEntry(kind="compaction", at_ms=now_ms, removed=removed)
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
    """Remove files that were merged, and those of tasks that died, once no reader can have them open."""
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
