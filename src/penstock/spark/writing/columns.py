"""The columns of a row that is written: which there may be, of which types, how they become records, and where they go.

Only ``value`` is required. Wrong names and types are refused when the writer is made, before anything runs; what is
wrong with a row names its column. Keys choose partitions as in every Kafka client, for all rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark_types

from penstock.errors import InvalidRecord
from penstock.priorities import PRIORITIES, PRIORITY_HEADER
from penstock.records.varint import varlong_bytes
from penstock.spark.options import nearest_of
from penstock.spark.writing.encoding import Bytes, Integers, Mask, binary_column, lengths_of, offsets_of

_BYTES: Final = (spark_types.StringType, spark_types.BinaryType)
_WHOLE: Final = (spark_types.ByteType, spark_types.ShortType, spark_types.IntegerType, spark_types.LongType)
_INSTANT: Final = (spark_types.TimestampType, spark_types.TimestampNTZType, spark_types.LongType)
_TYPES: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "topic": ((spark_types.StringType,), "string"),
    "key": (_BYTES, "string or binary"),
    "value": (_BYTES, "string or binary"),
    "partition": (_WHOLE, "int"),
    "timestamp": (_INSTANT, "timestamp, or long for milliseconds since 1970"),
    "priority": ((spark_types.StringType,), "string"),
    "deliver_at": (_INSTANT, "timestamp, or long for milliseconds since 1970"),
}
_HEADERS: Final = "map<string, string or binary> or array<struct<key: string, value: string or binary>>"
SINK_COLUMNS: Final = (*_TYPES, "headers")

_PRIORITY_HEADERS: Final = tuple(
    varlong_bytes(len(PRIORITY_HEADER)) + PRIORITY_HEADER.encode() + varlong_bytes(len(name)) + name.encode()
    for name in PRIORITIES
)
_NO_PRIORITY: Final = -1


def check_schema(schema: spark_types.StructType, *, has_topic: bool) -> None:
    """Refuse columns that are not known, of another type, or missing."""
    names = [name.lower() for name in schema.fieldNames()]
    for field, name in zip(schema.fields, names, strict=True):
        if name not in SINK_COLUMNS:
            nearest = nearest_of(name, SINK_COLUMNS)
            hint = f"did you mean {nearest!r}?" if nearest else f"A row has {', '.join(sorted(SINK_COLUMNS))}."
            raise InvalidRecord(f"The sink has no column {field.name!r}; {hint} Select or rename columns first.")
        if names.count(name) > 1:
            raise InvalidRecord(f"There is more than one column {name!r}.")
        if name == "headers":
            if not _are_headers(field.dataType):
                raise InvalidRecord(f"Column 'headers' is {_HEADERS}, not {field.dataType.simpleString()}.")
        elif not isinstance(field.dataType, _TYPES[name][0]):
            hint = " Use to_json(struct(*)) to write rows as JSON." if name == "value" else ""
            raise InvalidRecord(
                f"Column {name!r} is {_TYPES[name][1]}, not {field.dataType.simpleString()}; cast it.{hint}"
            )
    if "value" not in names:
        raise InvalidRecord("Column 'value' is missing. Use to_json(struct(*)) AS value to write rows as JSON.")
    if "topic" not in names and not has_topic:
        raise InvalidRecord("Name the topic: by the option 'topic', or by a column 'topic' for each row.")


def _are_headers(kind: spark_types.DataType) -> bool:
    if isinstance(kind, spark_types.MapType):
        return isinstance(kind.keyType, spark_types.StringType) and isinstance(kind.valueType, _BYTES)
    if not isinstance(kind, spark_types.ArrayType) or not isinstance(kind.elementType, spark_types.StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name.lower() for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, spark_types.StringType)
        and isinstance(fields[1].dataType, _BYTES)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of one topic in Arrow, with defaults filled in but for the partition, -1 where the key decides."""

    topic: str = ""
    key: pa.Array | None
    value: pa.Array
    timestamps_ms: Integers
    partitions: Integers | None
    header_counts: Integers | None
    headers: list[pa.Array]
    priorities: Integers | None  # lanes, -1: none
    due_ms: Integers | None  # -1: now

    @property
    def count(self) -> int:
        return len(self.value)

    def only(self, mask: Mask) -> Rows:
        """Some of the rows."""
        at = np.flatnonzero(mask)
        taken = pa.array(at)

        def of(column: Any) -> Any:
            return None if column is None else column.take(taken) if isinstance(column, pa.Array) else column[at]

        return Rows(
            topic=self.topic,
            key=of(self.key),
            value=of(self.value),
            timestamps_ms=of(self.timestamps_ms),
            partitions=of(self.partitions),
            header_counts=of(self.header_counts),
            headers=[of(each) for each in self.headers],
            priorities=of(self.priorities),
            due_ms=of(self.due_ms),
        )


def rows_of(batch: pa.RecordBatch, default_topic: str | None, now_ms: int) -> Iterator[Rows]:
    """The rows of a batch, topic by topic."""
    columns = {name.lower(): batch.column(at) for at, name in enumerate(batch.schema.names)}
    header_counts, headers = _headers(columns.get("headers"))
    priorities = _priorities(columns.get("priority"))
    if priorities is not None:
        written = np.array([*_PRIORITY_HEADERS, b""], dtype=object)[priorities]
        headers = [*headers, pa.array(written, pa.binary())]
        counts = np.zeros(len(batch), np.int64) if header_counts is None else header_counts
        header_counts = counts + (priorities != _NO_PRIORITY)
    timestamps = _milliseconds(columns.get("timestamp"), "timestamp", now_ms)
    rows = Rows(
        key=None if "key" not in columns else columns["key"].cast(pa.binary()),
        value=columns["value"].cast(pa.binary()),
        timestamps_ms=np.full(len(batch), now_ms, np.int64) if timestamps is None else timestamps,
        partitions=_partitions(columns.get("partition")),
        header_counts=header_counts,
        headers=headers,
        priorities=priorities,
        due_ms=_milliseconds(columns.get("deliver_at"), "deliver_at", -1),
    )
    yield from _by_topic(rows, columns.get("topic"), default_topic)


def _by_topic(rows: Rows, topics: pa.Array | None, default: str | None) -> Iterator[Rows]:
    if topics is not None and topics.null_count:
        if default is None:
            raise InvalidRecord("A row has no topic: its column 'topic' is null, and there is no option 'topic'.")
        topics = topics.fill_null(default)
    if topics is None:
        assert default is not None, "checked with the schema"
        yield replace(rows, topic=default)
        return
    coded = topics.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if len(names) == 1:
        yield replace(rows, topic=names[0])
        return
    numbers = coded.indices.to_numpy()
    for number, name in enumerate(names):
        yield replace(rows.only(numbers == number), topic=name)


def _headers(column: pa.Array | None) -> tuple[Integers | None, list[pa.Array]]:
    """How many headers each row has, and all of them encoded, as one binary value a row."""
    if column is None:
        return None, []
    if pa.types.is_map(column.type):
        pair = pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])
        column = column.cast(pa.list_(pair))
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = column.flatten()
    names, values = (flat.field(at).cast(pa.binary()) for at in (0, 1))
    if flat.null_count or names.null_count:
        raise InvalidRecord("A header has no name: column 'headers' holds a null.")
    pieces = [_lengths(names), names, _lengths(values), values]
    separator = pa.scalar(b"", pa.binary())
    each = pc.binary_join_element_wise(*pieces, separator, null_handling="replace", null_replacement=b"")
    # Headers of a row are neighbours, so a row's are a slice of all.
    offsets = offsets_of(each)
    ends = np.concatenate(([0], np.cumsum(counts)))
    data: Bytes = np.frombuffer(each.buffers()[2] or b"", np.uint8)
    return counts, [binary_column(data, np.diff(offsets[ends]))]


def _lengths(column: pa.Array) -> pa.Array:
    """The length of each value as it stands before it; few lengths occur, so each is coded once."""
    lengths = np.where(column.is_null().to_numpy(zero_copy_only=False), -1, lengths_of(column))
    found, places = np.unique(lengths, return_inverse=True)
    return pa.array([varlong_bytes(length) for length in found.tolist()], pa.binary()).take(pa.array(places))


def _priorities(column: pa.Array | None) -> Integers | None:
    if column is None:
        return None
    lanes = pc.index_in(column, pa.array(PRIORITIES, column.type))
    strange = pc.and_(pc.is_null(lanes), pc.is_valid(column))
    if pc.any(strange).as_py():
        wrong = column.filter(strange)[0].as_py()
        raise InvalidRecord(f"Column 'priority' has {wrong!r}; it is one of {', '.join(PRIORITIES)}, or null.")
    found: Integers = lanes.fill_null(_NO_PRIORITY).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _partitions(column: pa.Array | None) -> Integers | None:
    if column is None:
        return None
    found: Integers = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    negative = (found < 0) & column.is_valid().to_numpy(zero_copy_only=False)
    if negative.any():
        raise InvalidRecord(f"Column 'partition' has {found[negative][0]}; partitions are numbered from 0.")
    return found


def _milliseconds(column: pa.Array | None, name: str, missing: int) -> Integers | None:
    if column is None:
        return None
    is_instant = pa.types.is_timestamp(column.type)
    numbers = column.cast(pa.int64())
    if is_instant:
        assert column.type.unit == "us", "Spark's timestamps are microseconds"
        numbers = pa.array(numbers.fill_null(0).to_numpy(zero_copy_only=False) // 1_000, mask=_is_null(column))
    negative = pc.less(numbers, 0)
    if pc.any(negative).as_py():
        raise InvalidRecord(f"Column {name!r} has a moment before 1970, which a record cannot have.")
    found: Integers = numbers.fill_null(missing).to_numpy(zero_copy_only=False)
    return found


def _is_null(column: pa.Array) -> Mask:
    found: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return found


# -- partitions by key -------------------------------------------------------------------------------------------------

_SEED: Final = np.uint32(0x9747B28C)
_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = np.uint32(0x7FFFFFFF)

Hashes = np.ndarray[Any, np.dtype[np.uint32]]


def partitions_of(keys: pa.Array | None, rows: int, partition_count: int, start: int) -> Integers:
    """A partition for each row: by its key, or where it has none in runs, from partition ``start`` on."""
    runs = (start + np.arange(rows, dtype=np.int64) * partition_count // max(rows, 1)) % partition_count
    if keys is None or keys.null_count == rows:
        return runs
    hashed = ((hashes_of(keys) & _POSITIVE) % np.uint32(partition_count)).astype(np.int64)
    if not keys.null_count:
        return hashed
    return np.where(keys.is_null().to_numpy(zero_copy_only=False), runs, hashed)


def hashes_of(keys: pa.Array) -> Hashes:
    """Kafka's murmur2 of each key, keys of one length together."""
    lengths = lengths_of(keys)
    hashes = np.empty(len(keys), np.uint32)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        same = keys if len(rows) == len(keys) else keys.take(pa.array(rows))
        hashes[rows] = _hashes(same, length)
    return hashes


def _hashes(keys: pa.Array, length: int) -> Hashes:
    count = len(keys)
    value = np.full(count, _SEED ^ np.uint32(length), np.uint32)
    if length:
        begin = int(offsets_of(keys)[0])
        data = np.frombuffer(keys.buffers()[2], np.uint8, count=count * length, offset=begin).reshape(count, length)
        words = length >> 2
        for word in np.ascontiguousarray(data[:, : words << 2]).view("<u4").T if words else ():
            mixed = word * _MULTIPLIER
            mixed = (mixed ^ (mixed >> np.uint32(24))) * _MULTIPLIER
            value = (value * _MULTIPLIER) ^ mixed
        if length & 3:
            rest = np.zeros((count, 4), np.uint8)
            rest[:, : length & 3] = data[:, words << 2 :]
            value = (value ^ rest.view("<u4")[:, 0]) * _MULTIPLIER
    value = (value ^ (value >> np.uint32(13))) * _MULTIPLIER
    return value ^ (value >> np.uint32(15))
