"""Slices of one buffer as an Arrow array of bytes, copied together by Arrow and not one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.spark.decoding.numbers import Numbers


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
