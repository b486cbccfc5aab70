"""The data source ``penstock``: what Spark asks for readers and writers of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.errors import InvalidConfig
from penstock.spark.reading.frame import check_schema, schema_of
from penstock.spark.reading.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

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
        from penstock.spark.reading.batch import BatchReader

        options = SourceOptions.of(self.options, is_streaming=False)
        check_schema(schema, options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from penstock.spark.reading.streaming import StreamReader

        options = SourceOptions.of(self.options, is_streaming=True)
        check_schema(schema, options)
        return StreamReader(options)

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
