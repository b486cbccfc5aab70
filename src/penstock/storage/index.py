"""The sparse index of one segment: where in the file an offset or a point in time is.

One row is kept for about every 4 KiB of log: the batch's offset relative to the segment, its position, and the largest
timestamp seen up to and including it. All three columns only grow, so both lookups are a binary search.

The index of the active segment lives in memory. When a segment is sealed, or the node shuts down, it is written next to
the log; a valid index file whose ``log_size`` equals the log's size is also the mark that the log needs no scan. The
file holds nothing that a scan of the log could not rebuild. Format: docs/formats/index.md.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Final, NamedTuple

import crc32c

from penstock.records import BatchHeader
from penstock.storage.files import Files, read_file, replace_file

_MAGIC: Final = b"PSIX"
_VERSION: Final = 1
# magic, version, rows, base offset, next offset, log size, max timestamp, CRC32C of the columns; then that of this
_HEADER: Final = struct.Struct("<4sIQqqQqI")
_CRC: Final = struct.Struct("<I")
_HEADER_BYTES: Final = _HEADER.size + _CRC.size
_ROW_BYTES: Final = 16
NO_TIMESTAMP: Final = -1
OFFSETS_IN_SEGMENT_MAX: Final = (1 << 31) - 1  # rows keep relative offsets in 32 bits


class IndexSummary(NamedTuple):
    """What the header of an index file says of its segment."""

    rows: int
    next_offset: int
    max_timestamp: int
    columns_crc: int


class Index:
    """Rows of (relative offset, position, running largest timestamp), and what they describe."""

    __slots__ = ("_offsets", "_positions", "_timestamps", "base_offset", "log_size", "max_timestamp", "next_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.log_size = 0
        self.max_timestamp = NO_TIMESTAMP
        self._offsets = array("I")
        self._positions = array("I")
        self._timestamps = array("q")

    def __repr__(self) -> str:
        return f"<Index {self.base_offset}..{self.next_offset} {len(self._offsets)} rows, {self.log_size} bytes>"

    def add(self, header: BatchHeader, base_offset: int, position: int, interval_bytes: int) -> None:
        """Note a batch behind all others, with a row of its own where the last row is far enough behind."""
        if header.max_timestamp > self.max_timestamp and header.count:  # compaction leaves batches without records
            self.max_timestamp = header.max_timestamp
        positions = self._positions
        if not positions or position - positions[-1] >= interval_bytes:
            self._offsets.append(base_offset - self.base_offset)
            positions.append(position)
            self._timestamps.append(self.max_timestamp)
        self.log_size = position + header.size
        self.next_offset = base_offset + header.last_offset_delta + 1

    @property
    def size_bytes(self) -> int:
        return len(self._offsets) * _ROW_BYTES

    def rows(self) -> list[tuple[int, int]]:
        """(offset, position) of every indexed batch."""
        return [(self.base_offset + offset, at) for offset, at in zip(self._offsets, self._positions, strict=True)]

    def around(self, offset: int) -> tuple[int, int]:
        """The indexed positions at or before the batch that holds ``offset``, and after it."""
        row = bisect_right(self._offsets, offset - self.base_offset)
        before = self._positions[row - 1] if row > 0 else 0
        after = self._positions[row] if row < len(self._positions) else self.log_size
        return before, after

    def position_before_time(self, timestamp: int) -> int:
        """A position at or before the first batch that reaches ``timestamp``."""
        row = bisect_left(self._timestamps, timestamp) - 1
        return self._positions[row] if row >= 0 else 0

    def row_before(self, position: int) -> tuple[int, int]:
        """(position, offset) of the last indexed batch at or before ``position``."""
        row = bisect_right(self._positions, position) - 1
        return (self._positions[row], self.base_offset + self._offsets[row]) if row >= 0 else (0, self.base_offset)

    def save(self, files: Files, path: Path) -> None:
        """Write the index durably."""
        columns = self._timestamps.tobytes() + self._offsets.tobytes() + self._positions.tobytes()
        rows, crc = len(self._offsets), crc32c.crc32c(columns)
        header = _HEADER.pack(
            _MAGIC, _VERSION, rows, self.base_offset, self.next_offset, self.log_size, self.max_timestamp, crc
        )
        replace_file(files, path, header + _CRC.pack(crc32c.crc32c(header)) + columns)

    @classmethod
    def load(cls, files: Files, path: Path, base_offset: int, log_size: int) -> Index | None:
        """The saved index if it is whole and describes a log of exactly this size, else None."""
        found = read_file(files, path)
        if found is None:
            return None
        data = memoryview(found)
        summary = _parse_summary(data[:_HEADER_BYTES], base_offset, log_size)
        columns = data[_HEADER_BYTES:]
        if summary is None or len(columns) != summary.rows * _ROW_BYTES:
            return None
        if crc32c.crc32c(columns) != summary.columns_crc:
            return None
        rows = summary.rows
        index = cls(base_offset)
        index.next_offset, index.log_size, index.max_timestamp = summary.next_offset, log_size, summary.max_timestamp
        index._timestamps.frombytes(columns[: rows * 8])
        index._offsets.frombytes(columns[rows * 8 : rows * 12])
        index._positions.frombytes(columns[rows * 12 :])
        return index


def peek_index(files: Files, path: Path, base_offset: int, log_size: int) -> IndexSummary | None:
    """The header of a saved index, checked like `Index.load` does but without reading the rows."""
    header = read_file(files, path, _HEADER_BYTES)
    return None if header is None else _parse_summary(memoryview(header), base_offset, log_size)


def stated_size(files: Files, path: Path, base_offset: int) -> int:
    """The size that its log had when an index was saved; -1 if there is none or it is damaged."""
    header = memoryview(read_file(files, path, _HEADER_BYTES) or b"")
    if len(header) < _HEADER_BYTES:
        return -1
    size: int = _HEADER.unpack_from(header)[5]
    return -1 if _parse_summary(header, base_offset, size) is None else size


def state_missing(files: Files, path: Path, base_offset: int, next_offset: int) -> None:
    """Write, in the place of an index, that a segment had bytes up to an offset: a file without them is damaged."""
    index = Index(base_offset)
    index.next_offset, index.log_size = next_offset, 1
    index.save(files, path)


def _parse_summary(header: memoryview, base_offset: int, log_size: int) -> IndexSummary | None:
    if len(header) < _HEADER_BYTES:
        return None
    if crc32c.crc32c(header[: _HEADER.size]) != _CRC.unpack_from(header, _HEADER.size)[0]:
        return None
    magic, version, rows, base, next_offset, size, max_timestamp, columns_crc = _HEADER.unpack_from(header)
    if (magic, version, base, size) != (_MAGIC, _VERSION, base_offset, log_size):
        return None
    return IndexSummary(rows, next_offset, max_timestamp, columns_crc)
