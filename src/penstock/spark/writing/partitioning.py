"""Which partition each row of a column of keys goes to: as every Kafka client has it, for all rows at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.spark.writing.encoding import Integers, lengths_of, offsets_of

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
