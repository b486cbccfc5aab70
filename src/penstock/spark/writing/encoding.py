"""Record batches from columns: what Spark hands over in Arrow goes into the format of the log as a whole.

Nothing is made for each row. Everything in a record that is not the user's own bytes is a number of variable length;
those of all rows are worked out together, and one call of Arrow puts numbers, keys, values and headers together, row
after row, into one buffer, with room before the first row of each batch for the batch's own header. So batches are
slices of that buffer, and nothing is copied once more. The bytes are those of ``encode_batch``.
Format: docs/formats/record-batch.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.records import TRANSACTIONAL_BIT, BatchHeader, Codec
from penstock.records.batch import assemble_batch, complete_batch
from penstock.records.header import HEADER_BYTES, MAGIC

Integers = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

_OVERHEAD_BYTES: Final = 36  # the most that lengths, attributes and deltas of a record take
_NOT_THERE: Final = -1  # the length of what is null
_SEQUENCE_WRAP: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows on their way to one topic, each with its partition. ``headers`` are encoded, and counted."""

    partitions: Integers
    timestamps_ms: Integers
    key: pa.Array | None
    value: pa.Array
    header_counts: Integers | None = None
    headers: Sequence[pa.Array] = ()

    @property
    def count(self) -> int:
        return len(self.partitions)

    def take(self, order: Integers) -> Columns:
        """The same rows in another order, or some of them."""
        at = pa.array(order)
        return Columns(
            self.partitions[order],
            self.timestamps_ms[order],
            None if self.key is None else self.key.take(at),
            self.value.take(at),
            None if self.header_counts is None else self.header_counts[order],
            [each.take(at) for each in self.headers],
        )


@dataclass(slots=True)
class Numbering:
    """Who writes the batches, and how many messages of it each partition has by now."""

    producer_id: int
    producer_epoch: int
    is_transactional: bool
    sent: dict[tuple[str, int], int] = field(default_factory=dict)

    def take(self, topic: str, partition: int, count: int) -> int:
        """The sequence number of the next batch, of so many messages."""
        first = self.sent.get((topic, partition), 0)
        self.sent[topic, partition] = (first + count) % _SEQUENCE_WRAP
        return first


class EncodedBatch(NamedTuple):
    """A batch and where it goes."""

    partition: int
    data: bytearray | memoryview


def encode(
    topic: str, columns: Columns, numbering: Numbering, *, batch_bytes: int, codec: Codec = Codec.NONE
) -> Iterator[EncodedBatch]:
    """Batches of up to ``batch_bytes`` each, partition after partition; a larger record is alone in its batch."""
    if columns.count == 0:
        return
    partitions = columns.partitions
    if np.any(partitions[1:] < partitions[:-1]):
        columns = columns.take(np.argsort(partitions, kind="stable"))
        partitions = columns.partitions
    firsts = _cut(columns, batch_bytes)
    ends = np.append(firsts[1:], columns.count)
    payload, offsets = _records(columns, firsts, ends)
    timestamps = columns.timestamps_ms
    latest = np.maximum.reduceat(timestamps, firsts)
    attributes = int(codec) | (TRANSACTIONAL_BIT if numbering.is_transactional else 0)
    for at, (first, end) in enumerate(zip(firsts.tolist(), ends.tolist(), strict=True)):
        count, partition = end - first, int(partitions[first])
        header = BatchHeader(
            base_offset=0,
            length=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=attributes,
            last_offset_delta=count - 1,
            base_timestamp=int(timestamps[first]),
            max_timestamp=int(latest[at]),
            producer_id=numbering.producer_id,
            producer_epoch=numbering.producer_epoch,
            base_sequence=numbering.take(topic, partition, count),
            count=count,
        )
        batch = payload[offsets[first] : offsets[end]]
        if codec is Codec.NONE:
            complete_batch(header, batch)
            yield EncodedBatch(partition, batch)
        else:
            yield EncodedBatch(partition, assemble_batch(header, (batch[HEADER_BYTES:],)))


def _cut(columns: Columns, batch_bytes: int) -> Integers:
    """Where batches begin, in rows that are sorted by partition."""
    sizes = lengths_of(columns.value) + _OVERHEAD_BYTES
    for each in (columns.key, *columns.headers):
        if each is not None:
            sizes += lengths_of(each)
    total = np.cumsum(sizes)
    bounds = np.flatnonzero(np.diff(columns.partitions)) + 1
    firsts: list[int] = []
    for first, end in zip([0, *bounds.tolist()], [*bounds.tolist(), columns.count], strict=True):
        while first < end:
            firsts.append(first)
            before = int(total[first - 1]) if first else 0
            fits = int(np.searchsorted(total, before + batch_bytes, side="right"))
            first = min(max(fits, first + 1), end)
    return np.array(firsts, dtype=np.int64)


def _records(columns: Columns, firsts: Integers, ends: Integers) -> tuple[memoryview, Integers]:
    """The records of all batches one after the other, with room before each batch, and where each row begins."""
    count = columns.count
    base = np.repeat(firsts, ends - firsts)
    nothing = np.zeros(count, np.int64)
    attributes = _varints(nothing)
    times = _varints(columns.timestamps_ms - columns.timestamps_ms[base])
    numbers = _varints(np.arange(count, dtype=np.int64) - base)
    keys = _varints(np.full(count, _NOT_THERE) if columns.key is None else _told_lengths(columns.key))
    values = _varints(_told_lengths(columns.value))
    counts = _varints(nothing if columns.header_counts is None else columns.header_counts)
    size = _together(attributes, times, numbers, keys, values, counts)
    for each in (columns.key, columns.value, *columns.headers):
        if each is not None:
            size += lengths_of(each)
    head = (_varints(size), attributes, times, numbers, keys)
    tail = [_ragged(counts), *columns.headers]
    if columns.key is None:
        pieces = [_ragged(*head, values), columns.value, *tail]
    else:
        pieces = [_ragged(*head), columns.key, _ragged(values), columns.value, *tail]
    separator = pa.scalar(b"", pa.binary())
    joined = pc.binary_join_element_wise(
        _rooms(firsts, count), *pieces, separator, null_handling="replace", null_replacement=b""
    )
    return memoryview(joined.buffers()[2]).cast("B"), offsets_of(joined)


def _rooms(firsts: Integers, count: int) -> pa.Array:
    """Room for a header before each first row of a batch, and nothing before the others."""
    lengths = np.zeros(count, np.int64)
    lengths[firsts] = HEADER_BYTES
    return binary_column(np.zeros(len(firsts) * HEADER_BYTES, np.uint8), lengths)


def offsets_of(column: pa.Array) -> Integers:
    """Where the bytes of each row begin in a binary column's buffer, and where the last ones end."""
    found = np.frombuffer(column.buffers()[1], np.int32, count=len(column) + 1, offset=4 * column.offset)
    return found.astype(np.int64)


def lengths_of(column: pa.Array) -> Integers:
    """How many bytes each row of a binary column has; none where it is null."""
    lengths: Integers = np.diff(offsets_of(column))
    return np.where(_nulls(column), 0, lengths) if column.null_count else lengths


def _told_lengths(column: pa.Array) -> Integers:
    lengths: Integers = np.diff(offsets_of(column))
    return np.where(_nulls(column), _NOT_THERE, lengths) if column.null_count else lengths


def _nulls(column: pa.Array) -> Mask:
    found: Mask = column.is_null().to_numpy(zero_copy_only=False)
    return found


class _Varints(NamedTuple):
    """Numbers of variable length: a row of bytes for each, and how many of them count."""

    data: Bytes
    widths: Integers

    @property
    def mask(self) -> Mask:
        found: Mask = np.arange(self.data.shape[1]) < self.widths[:, np.newaxis]
        return found


def _varints(values: Integers) -> _Varints:
    """Code numbers: zigzag, and seven bits a byte, of which the last one of a number has its highest bit unset."""
    coded = ((values << 1) ^ (values >> 63)).view(np.uint64)
    largest = int(coded.max(initial=0))
    width = max(1, -(-largest.bit_length() // 7))
    data = np.empty((len(values), width), np.uint8)
    widths = np.ones(len(values), np.int64)
    for at in range(width):
        data[:, at] = coded & np.uint64(0x7F)
        if at + 1 < width:
            coded = coded >> np.uint64(7)
            has_more = coded > 0
            data[:, at] |= has_more.view(np.uint8) << np.uint8(7)
            widths += has_more
    return _Varints(data, widths)


def _together(*coded: _Varints) -> Integers:
    """How many bytes these numbers take in each row."""
    widths: Integers = np.sum([each.widths for each in coded], axis=0)
    return widths


def _ragged(*coded: _Varints) -> pa.Array:
    """Numbers that stand one after the other in each row, as a binary column."""
    widths = _together(*coded)
    data = np.hstack([each.data for each in coded])
    if int(widths.min()) < data.shape[1]:
        data = data[np.hstack([each.mask for each in coded])]
    return binary_column(data.reshape(-1), widths)


def binary_column(data: Bytes, lengths: Integers) -> pa.Array:
    """A binary column of these bytes, so many for each row."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
