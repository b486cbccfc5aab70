"""Headers of many records as one Arrow array of lists.

All records' first headers are decoded together, then all second ones, and so on: the work is as many steps as the
record with the most headers has.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptRecords
from penstock.spark.decoding.numbers import Bytes, Numbers, read_numbers
from penstock.spark.decoding.slices import gather


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
