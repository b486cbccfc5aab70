"""Batches of a stream into a lake, each message once.

What is in the lake is what its catalog says, and an entry of that is written once a batch, as a whole. A batch that is
run again finds its offsets there and adds nothing, whichever checkpoint it comes from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipelines.lake.catalog import CHECKSUM, Catalog, Entry, TopicFact
from penstock.pipelines.lake.compaction import Limits, compact
from penstock.pipelines.lake.settings import kept_settings
from penstock.pipelines.lake.sink import write_to_lake
from penstock.pipelines.lake.writing import Batch
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
        entry = Entry(kind="batch", at_ms=now_ms, topics=list(topics.values()))
        summed = rows.withColumn("checksum", sql.expr(CHECKSUM))
        if self._writers:
            summed = summed.coalesce(self._writers)
        write_to_lake(summed, catalog, entry, Batch(batch, now_ms, topics, reached))
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
