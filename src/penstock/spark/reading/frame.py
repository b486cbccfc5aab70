"""The rows that a reader gives to Spark: their schema, and decoded messages put into it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidConfig
from penstock.spark.decoding import DecodedRows
from penstock.spark.reading.options import SourceOptions
from penstock.spark.reading.plan import ReadSpan
from penstock.spark.values import struct_of

if TYPE_CHECKING:
    from penstock.spark.value_reader import ValueReader

_HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": _HEADERS,
}
_OF_MESSAGES: Final = ("offset", "timestamp", "key", "value", "headers")


def schema_of(options: SourceOptions) -> StructType:
    """The schema of the rows that these options ask for."""
    types = dict(_TYPES)
    if options.schema is not None:
        types["value"] = struct_of(options.schema)
    return StructType([StructField(name, types[name]) for name in options.columns])


def with_columns(given: StructType, options: SourceOptions) -> SourceOptions:
    """Options with the columns of a schema that the user gave, if it is a part of the source's own.

    Any other is refused; Spark would find out at the first row.
    """
    own = schema_of(options)
    types = {field.name: field.dataType for field in own}
    names = tuple(field.name for field in given)
    if names and len(set(names)) == len(names) and all(types.get(field.name) == field.dataType for field in given):
        return replace(options, columns=names, schema=options.schema if "value" in names else None)
    raise InvalidConfig(
        f"The source's rows are {own.simpleString()}; leave out `.schema(...)`, or name some of these columns in it. "
        'To have values parsed, give `.option("schema", ...)`.'
    )


class RowFrame:
    """Makes Arrow record batches of a schema."""

    def __init__(self, options: SourceOptions, values: ValueReader | None = None) -> None:
        self.schema: pa.Schema = to_arrow_schema(schema_of(options), timezone="UTC")
        self.wanted = tuple(name for name in options.columns if name in _OF_MESSAGES)
        self.headers_type = self.schema.field("headers").type if "headers" in self.schema.names else None
        self._values = values
        if values is not None:
            # A parser of values names the message of a bad one, and may have to keep all of it.
            self.wanted = tuple(dict.fromkeys((*self.wanted, "offset", "value", *values.needs)))
            self.headers_type = (
                self.headers_type
                or to_arrow_schema(StructType([StructField("headers", _HEADERS)]), timezone="UTC").field(0).type
            )

    def batch(self, span: ReadSpan, decoded: DecodedRows) -> pa.RecordBatch:
        """Messages of a span as Spark takes them."""
        columns: dict[str, Any] = dict(decoded.columns)
        if self._values is not None:
            columns = self._values.parse(span, columns, self.schema.field("value").type)
        count = len(next(iter(columns.values()))) if columns else decoded.rows
        if "topic" in self.schema.names:
            columns["topic"] = pa.repeat(pa.scalar(span.topic, type=pa.string()), count)
        if "partition" in self.schema.names:
            columns["partition"] = pa.repeat(pa.scalar(span.partition, type=pa.int32()), count)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
