"""Rows of a lake for Spark: those of files in the catalog, between offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import InvalidLake
from penstock.pipelines.lake.catalog import CHECKSUM, Catalog, DataFile, LakePartition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEMA: Final = (
    "generation INT, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, date DATE, hour INT"
)


class ArchivedSpan(NamedTuple):
    """Offsets of a partition, the end left out."""

    begin: int
    end: int


Spans = Mapping[LakePartition, ArchivedSpan]


def rows_between(spark: SparkSession, catalog: Catalog, spans: Spans) -> DataFrame:
    """The messages of these spans. Their order is that of the columns generation, partition and offset."""
    rows = rows_of(spark, catalog.lake, files_between(catalog, spans))
    return rows.where(reduce(or_, (_is_in(where, span) for where, span in spans.items()), _nothing()))


def rows_of(spark: SparkSession, lake: Path, files: Iterable[DataFile]) -> DataFrame:
    paths = [str(lake / file.path) for file in files]
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    return spark.read.schema(SCHEMA).option("basePath", str(lake)).parquet(*paths)


def files_between(catalog: Catalog, spans: Spans) -> list[DataFile]:
    """Files that have any message of these spans."""
    found = []
    for file in catalog.files.values():
        for each in file.ranges:
            span = spans.get((file.topic, file.generation, each.partition))
            if span is not None and each.first < span.end and each.last >= span.begin:
                found.append(file)
                break
    return sorted(found, key=lambda file: file.path)


def check_files(spark: SparkSession, lake: Path, files: Iterable[DataFile]) -> int:
    """Compare files with what the catalog says of them, message by message; how many messages that were."""
    from pyspark.sql import functions as sql

    known = {file.path: file for file in files}
    missing = [path for path in known if not (lake / path).exists()]
    if missing:
        raise InvalidLake(f"The lake {lake} lacks {missing[0]}, which its catalog has. Restore it from a copy.")
    rows = rows_of(spark, lake, known.values())
    name = sql.element_at(sql.split("_metadata.file_path", "/"), -1).alias("name")
    summed = rows.groupBy(name, "partition").agg(
        sql.count("*").alias("rows"), sql.bit_xor(sql.expr(CHECKSUM)).alias("checksum")
    )
    found = {(row.name, row.partition): (row.rows, f"{row.checksum & (1 << 64) - 1:016x}") for row in summed.collect()}
    for path, file in known.items():
        for each in file.ranges:
            if found.get((path.rsplit("/", 1)[1], each.partition)) != (each.rows, each.checksum):
                raise InvalidLake(
                    f"{lake / path} is not what was archived: messages {each.first} to {each.last} of {file.topic}-"
                    f"{each.partition} have another count or checksum. Restore the file from a copy."
                )
    return sum(file.rows for file in known.values())


def _is_in(where: LakePartition, span: ArchivedSpan) -> Column:
    from pyspark.sql import functions as sql

    topic, generation, partition = where
    is_there = (sql.col("topic") == topic) & (sql.col("generation") == generation) & (sql.col("partition") == partition)
    return is_there & (sql.col("offset") >= span.begin) & (sql.col("offset") < span.end)


def _nothing() -> Column:
    from pyspark.sql import functions as sql

    return sql.expr("false")
