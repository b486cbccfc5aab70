"""The data source ``penstock``: what Spark asks for readers and writers of topics."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

from penstock.errors import InvalidConfig
from penstock.spark.reading.frame import schema_of, with_columns
from penstock.spark.reading.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

_PUSHES_FILTERS: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_STREAM_ONLY = ("group", "maxrecordspertrigger", "maxbytespertrigger", "maxoffsetspertrigger")


class PenstockSource(DataSource):
    """Topics as tables. Spark finds it by itself, as ``pyspark_penstock.DefaultSource``."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """Asked for before it is known whether this is a stream; options of either kind are let pass."""
        is_streaming = any(name.lower() in _STREAM_ONLY for name in self.options)
        return schema_of(SourceOptions.of(self.options, is_streaming=is_streaming))

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.reading.batch import BatchReader, FilteredReader

        options = with_columns(schema, SourceOptions.of(self.options, is_streaming=False))
        return FilteredReader(options) if _pushes_filters(sys._getframe(1)) else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from penstock.spark.reading.streaming import StreamReader

        options = SourceOptions.of(self.options, is_streaming=True)
        return StreamReader(with_columns(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.writing.sink import BatchSink

        if overwrite:
            raise InvalidConfig('A topic can only be appended to: use mode("append").')
        return BatchSink(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from penstock.spark.writing.sink import StreamSink

        if overwrite:
            raise InvalidConfig('A topic can only be appended to: use outputMode("append").')
        return StreamSink(dict(self.options), schema)


def _pushes_filters(caller: FrameType) -> bool:
    """Whether a reader is asked for to push filters down to it.

    Spark refuses a reader that could take filters where `spark.sql.python.filterPushdown.enabled` is off, and tells no
    reader of that setting. It uses another program to plan reads where it is on and there are filters.
    """
    spec = caller.f_globals.get("__spec__")
    return spec is not None and spec.name == _PUSHES_FILTERS
