"""Record batches as Arrow record batches, without a Python object for each message.

Only the lengths of records are walked one by one, and neighbours of one size in a single step; all other numbers are
decoded for many records at once. Keys, values and headers are slices of one buffer, which Arrow gathers. What comes out
is the same as from `penstock.records.decode_records`, and what that refuses is refused here.
Format: docs/formats/record-batch.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CorruptRecords
from penstock.records import BatchHeader, Codec, check_batch, decompress, iter_batches
from penstock.records.header import HEADER_BYTES, NO_TIMESTAMP, RECORD_BYTES_MIN
from penstock.records.varint import read_varint

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_BYTES_MAX: Final = 10


def read_numbers(array: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """The zigzag varints at these places, and where each of them ends. Past the array's end it raises IndexError."""
    signs = array[at]
    values = (signs & 0x7F).astype(np.uint64)
    after = at + 1
    longer = np.flatnonzero(signs & 0x80)
    shift = 7
    while len(longer):
        if shift >= 7 * _BYTES_MAX:
            raise CorruptRecords("A number takes more bytes than any does.")
        if len(longer) == len(at):
            signs = array[after]
            values |= (signs & 0x7F).astype(np.uint64) << np.uint64(shift)
            after += 1
            longer = np.flatnonzero(signs & 0x80)
        else:
            signs = array[after[longer]]
            values[longer] |= (signs & 0x7F).astype(np.uint64) << np.uint64(shift)
            after[longer] += 1
            longer = longer[(signs & 0x80) != 0]
        shift += 7
    halves = (values >> np.uint64(1)).astype(np.int64)
    return halves ^ -(values & np.uint64(1)).astype(np.int64), after


def gather(source: pa.Buffer, begins: Numbers, lengths: Numbers) -> pa.Array:
    """Slices of a buffer, in ascending order, as an array of bytes; a length of -1 is null.

    The slices and the gaps between them make an array over the whole buffer; taking every other item of it copies the
    slices together, and nothing else.
    """
    count = len(begins)
    bounds = np.empty(2 * count + 1, dtype=np.int32)
    bounds[0 : 2 * count : 2] = begins
    bounds[1 : 2 * count : 2] = begins + np.maximum(lengths, 0)
    bounds[-1] = bounds[-2] if count else 0
    whole = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), source])
    is_null = lengths < 0
    indexes = pa.array(np.arange(0, 2 * count, 2), mask=is_null if is_null.any() else None)
    return whole.take(indexes)


def decode_headers(
    array: Bytes, source: pa.Buffer, counts: Numbers, at: Numbers, ends: Numbers, kind: pa.DataType
) -> pa.Array:
    """A list of (name, value) for each record; null where a record has no headers."""
    # A header takes two bytes at least: its name's length and its value's.
    if ((counts < 0) | (counts > (ends - at) // 2)).any():
        raise CorruptRecords("A record claims more headers than it has room for.")
    rows, spots = _places(array, counts, at, ends)
    order = np.argsort(rows, kind="stable")
    name_begins, name_lengths, value_begins, value_lengths = (spot[order] for spot in spots)
    names = _texts(gather(source, name_begins, name_lengths))
    values = gather(source, value_begins, value_lengths)
    pairs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    bounds = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=bounds[1:])
    return pa.ListArray.from_arrays(pa.array(bounds), pairs, type=kind)


def _places(array: Bytes, counts: Numbers, at: Numbers, ends: Numbers) -> tuple[Numbers, list[Numbers]]:
    """Which record each header belongs to, and where its name and value lie; first headers first."""
    found: list[list[Numbers]] = [[] for _ in range(5)]
    rows = np.flatnonzero(counts)
    at = at.copy()
    number = 0
    while len(rows):
        name_lengths, name_begins = read_numbers(array, at[rows])
        value_lengths, value_begins = read_numbers(array, name_begins + np.maximum(name_lengths, 0))
        after = value_begins + np.maximum(value_lengths, 0)
        if (name_lengths < 0).any() or (value_lengths < -1).any() or (after > ends[rows]).any():
            raise CorruptRecords("A header does not fit its record.")
        for column, part in zip(found, (rows, name_begins, name_lengths, value_begins, value_lengths), strict=True):
            column.append(part)
        at[rows] = after
        number += 1
        is_last = counts[rows] == number
        if (after[is_last] != ends[rows[is_last]]).any():
            raise CorruptRecords("A record's fields do not add up to its length.")
        rows = rows[~is_last]
    whole = [np.concatenate(column) if column else np.empty(0, dtype=np.int64) for column in found]
    return whole[0], whole[1:]


def _texts(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        # Kafka never checks names; what is not UTF-8 reads as it does in Java.
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], type=pa.string())


Data = bytes | bytearray | memoryview

BATCH_BYTES: Final = 8 * 1024 * 1024  # Spark is quickest with Arrow batches of 5 to 10 MB
_ROWS_MAX: Final = 100_000
_REPEATS_MIN: Final = 3  # neighbours of one size, before more of them are looked for at once
_RUN_WORTH: Final = 16  # records found at once, below which looking costs more than it saves
_RUN_PAUSE: Final = 256  # records until it is tried again
_MICROSECONDS_MAX: Final = (1 << 63) // 1000 - 1


class _Region(NamedTuple):
    """The records of one batch: where they lie in a buffer, and what its header says."""

    begin: int
    end: int
    header: BatchHeader


class DecodedRows(NamedTuple):
    """Messages as columns: how many, and the offset of the last one."""

    rows: int
    last_offset: int
    columns: dict[str, pa.Array]


def decode(
    data: Data, first: int, end: int, wanted: Sequence[str], headers_type: pa.DataType | None = None
) -> Iterator[DecodedRows]:
    """The messages with offsets from ``first`` up to ``end`` among whole record batches, some megabytes at a time.

    ``wanted`` are names of columns that a message has by itself: offset, timestamp, key, value, headers. Control
    batches are left out. Raises `CorruptRecords` where the bytes make no sense.
    """
    view = memoryview(data)
    group: list[_Piece] = []
    size = rows = 0
    reached = 0
    for position, header in iter_batches(data):
        reached = position + header.size
        if header.is_control or header.count == 0 or header.next_offset <= first or header.base_offset >= end:
            continue
        if not wanted and first <= header.base_offset and header.next_offset <= end and header.count <= _ROWS_MAX:
            check_batch(view[position:reached])
            yield DecodedRows(header.count, header.last_offset, {})  # all that is asked for is in the header
            continue
        piece = _open(view, position, header)
        if group and (size + piece.size > BATCH_BYTES or rows + header.count > _ROWS_MAX):
            yield _decode(data, group, first, end, wanted, headers_type)
            group, size, rows = [], 0, 0
        group.append(piece)
        size, rows = size + piece.size, rows + header.count
    if reached != len(data):
        raise CorruptRecords(f"{len(data) - reached} bytes after the last batch are no batch.")
    if group:
        yield _decode(data, group, first, end, wanted, headers_type)


class _Piece(NamedTuple):
    """One batch: its records where they lie in the data, or as they are decompressed."""

    header: BatchHeader
    begin: int
    end: int
    loose: bytes | None

    @property
    def size(self) -> int:
        return self.end - self.begin if self.loose is None else len(self.loose)


def _open(view: memoryview, position: int, header: BatchHeader) -> _Piece:
    batch = view[position : position + header.size]
    check_batch(batch)
    begin, end = position + HEADER_BYTES, position + header.size
    loose = None if header.codec is Codec.NONE else decompress(header.codec, batch[HEADER_BYTES:])
    size = end - begin if loose is None else len(loose)
    if header.count > size // RECORD_BYTES_MIN:
        raise CorruptRecords(f"A batch claims {header.count} records in {size} bytes.")
    return _Piece(header, begin, end, loose)


def _decode(
    data: Data,
    group: list[_Piece],
    first: int,
    end: int,
    wanted: Sequence[str],
    headers_type: pa.DataType | None,
) -> DecodedRows:
    buffer, regions = _lay_out(data, group)
    try:
        return _columns(buffer, regions, first, end, wanted, headers_type)
    except (IndexError, OverflowError, pa.ArrowInvalid):
        raise CorruptRecords("The buffer ends inside a record.") from None


def _lay_out(data: Data, group: list[_Piece]) -> tuple[Data, list[_Region]]:
    """One buffer that has the records of all these batches: the data itself, unless something was compressed."""
    if all(piece.loose is None for piece in group):
        return data, [_Region(piece.begin, piece.end, piece.header) for piece in group]
    view = memoryview(data)
    parts = [view[piece.begin : piece.end] if piece.loose is None else piece.loose for piece in group]
    regions: list[_Region] = []
    position = 0
    for piece, part in zip(group, parts, strict=True):
        regions.append(_Region(position, position + len(part), piece.header))
        position += len(part)
    return b"".join(parts), regions


# -- where records begin -----------------------------------------------------------------------------------------------


def _walk(buffer: Data, array: Bytes, regions: list[_Region]) -> list[int]:
    """Where the length of each record stands."""
    heads: list[int] = []
    append = heads.append
    for begin, end, header in regions:
        position, left = begin, header.count
        size = repeats = 0
        resume = left  # runs are looked for once no more than so many records are left
        while left:
            append(position)
            left -= 1
            if (low := buffer[position]) < 0x80:
                step = 1 + (low >> 1)
            elif (high := buffer[position + 1]) < 0x80:
                step = 2 + ((low & 0x7F) >> 1 | high << 6)
            else:
                length, after = read_varint(buffer, position)
                step = after - position + length
            position += step
            if position > end or step < RECORD_BYTES_MIN:
                raise CorruptRecords("A record's length does not fit its batch.")
            if step != size:
                size, repeats = step, 0
                continue
            repeats += 1
            if repeats >= _REPEATS_MIN and left <= resume and position < end:
                run = min(_run(array, position, end, step), left)
                heads.extend(range(position, position + run * step, step))
                position, left = position + run * step, left - run
                repeats, resume = 0, left if run >= _RUN_WORTH else left - _RUN_PAUSE
        if position != end:
            raise CorruptRecords("Bytes are left after the last record of a batch.")
    return heads


def _run(array: Bytes, position: int, end: int, step: int) -> int:
    """How many records from here on have the size of the one before.

    A record tells where the next one begins. So as long as what stands there is the same length, it is a record of the
    same size, and all of these places can be compared at once.
    """
    before = position - step
    is_same: npt.NDArray[np.bool_] | None = None
    for at in range(3):
        sign = array[before + at]
        column = array[position + at : end : step] == sign
        is_same = column if is_same is None else is_same[: len(column)] & column
        if sign < 0x80:
            break
    else:
        return 0  # records of a megabyte are few
    assert is_same is not None
    whole = (end - position) // step  # one that is cut off is none
    is_same = is_same[:whole]
    other = int(is_same.argmin()) if len(is_same) else 0
    return other if len(is_same) and not is_same[other] else len(is_same)


# -- what is in them ---------------------------------------------------------------------------------------------------


def _columns(
    buffer: Data,
    regions: list[_Region],
    first: int,
    end: int,
    wanted: Sequence[str],
    headers_type: pa.DataType | None,
) -> DecodedRows:
    array = np.frombuffer(buffer, dtype=np.uint8)
    heads = np.array(_walk(buffer, array, regions), dtype=np.int64)
    lengths, at = read_numbers(array, heads)
    ends = at + lengths
    counts = [region.header.count for region in regions]
    later, at = read_numbers(array, at + 1)  # behind attributes, of which the format defines none
    deltas, at = read_numbers(array, at)
    key_lengths, at = read_numbers(array, at)
    key_begins, at = at, at + np.maximum(key_lengths, 0)
    _check_within(key_lengths, at, ends)
    value_lengths, at = read_numbers(array, at)
    value_begins, at = at, at + np.maximum(value_lengths, 0)
    _check_within(value_lengths, at, ends)
    header_counts, at = read_numbers(array, at)
    _check_order(deltas, regions, counts)
    if ((header_counts == 0) & (at != ends)).any() or (at > ends).any() or (header_counts < 0).any():
        raise CorruptRecords("A record's fields do not add up to its length.")
    offsets = deltas + np.repeat([region.header.base_offset for region in regions], counts)
    chosen: Any = slice(None)
    if len(offsets) and (offsets[0] < first or offsets[-1] >= end):
        chosen = slice(int(np.searchsorted(offsets, first)), int(np.searchsorted(offsets, end)))
    columns: dict[str, pa.Array] = {}
    source = pa.py_buffer(buffer)
    for name in wanted:
        if name == "offset":
            columns[name] = pa.array(offsets[chosen])
        elif name == "timestamp":
            columns[name] = _timestamps(later, regions, counts, chosen)
        elif name == "key":
            columns[name] = gather(source, key_begins[chosen], key_lengths[chosen])
        elif name == "value":
            columns[name] = gather(source, value_begins[chosen], value_lengths[chosen])
        elif name == "headers":
            assert headers_type is not None, "headers have a type of their own"
            parts = (header_counts[chosen], at[chosen], ends[chosen])
            columns[name] = decode_headers(array, source, *parts, headers_type)
    met = offsets[chosen]
    return DecodedRows(len(met), int(met[-1]) if len(met) else first - 1, columns)


def _check_within(lengths: Numbers, reached: Numbers, ends: Numbers) -> None:
    if (lengths < -1).any() or (reached >= ends).any():  # a count of headers has to follow
        raise CorruptRecords("A field does not fit its record.")


def _check_order(deltas: Numbers, regions: list[_Region], counts: list[int]) -> None:
    lasts = np.repeat([region.header.last_offset_delta for region in regions], counts)
    is_first = np.zeros(len(deltas), dtype=bool)
    is_first[np.cumsum([0, *counts[:-1]])] = True
    rises = np.diff(deltas, prepend=-1) > 0
    if ((deltas < 0) | (deltas > lasts) | ~(rises | is_first)).any():
        raise CorruptRecords("A record is out of the order or the range of its batch.")


def _timestamps(later: Numbers, regions: list[_Region], counts: list[int], chosen: Any) -> pa.Array:
    """Milliseconds as Arrow's microseconds; null where a record has none, or one beyond what Spark can tell."""
    headers = [region.header for region in regions]
    is_appended = np.array([header.uses_append_time for header in headers])
    stamps = later + np.repeat([header.base_timestamp for header in headers], counts)
    if is_appended.any():
        appended = np.repeat([header.max_timestamp for header in headers], counts)
        stamps = np.where(np.repeat(is_appended, counts), appended, stamps)
    stamps = stamps[chosen]
    is_none = (stamps == NO_TIMESTAMP) | (np.abs(stamps) > _MICROSECONDS_MAX)
    micros = np.where(is_none, 0, stamps) * 1000
    return pa.array(micros, mask=is_none if is_none.any() else None).cast(pa.int64()).view(pa.timestamp("us", "UTC"))
