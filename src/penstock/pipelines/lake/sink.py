"""A lake as something that Spark writes to: tasks make files, and the driver's commit puts them into the catalog.

A task that dies, or runs twice, leaves at most a file that no entry names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from penstock.pipelines.lake.catalog import Catalog, CatalogEntry, DataFile, write_entry
from penstock.pipelines.lake.writing import BatchFiles, LakeBatch, merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT: Final = "penstock-lake"


def write_to_lake(rows: DataFrame, catalog: Catalog, entry: CatalogEntry, batch: LakeBatch | None = None) -> None:
    """Make files of rows, and an entry with them. Without a batch, each row is a group of files to merge."""
    rows.sparkSession.dataSource.register(LakeSink)
    options = {
        "lake": str(catalog.lake),
        "number": str(catalog.next_number),
        "entry": msgspec.json.encode(entry).decode(),
        "batch": msgspec.json.encode(batch).decode(),
    }
    rows.write.format(FORMAT).options(**options).mode("append").save()
    catalog.refresh()


@dataclass
class Made(WriterCommitMessage):
    """What a task made: files, as the catalog has them."""

    files: list[DataFile]


class LakeSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: Any, overwrite: bool) -> LakeWriter:  # noqa: ARG002
        return LakeWriter(dict(self.options))


class LakeWriter(DataSourceArrowWriter):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Made:
        lake = Path(self._options["lake"])
        batch = msgspec.json.decode(self._options["batch"], type=LakeBatch | None)
        if batch is not None:
            return Made(BatchFiles(lake, batch).write(iterator))
        texts = [text for rows in iterator for text in rows.column(0).to_pylist()]
        return Made([merge(lake, msgspec.json.decode(text, type=list[DataFile])) for text in texts])

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files = [file for made in messages if isinstance(made, Made) for file in made.files]
        if not files:
            return
        entry = msgspec.json.decode(self._options["entry"], type=CatalogEntry)
        names = {file.topic for file in files}
        topics = [fact for fact in entry.topics if fact.name in names]
        added = sorted(files, key=lambda file: file.path)
        write_entry(
            Path(self._options["lake"]),
            int(self._options["number"]),
            msgspec.structs.replace(entry, topics=topics, added=added),
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: files that no entry names are removed in time."""
