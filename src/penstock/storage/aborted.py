"""The aborted transactions of one log: which records a reader of committed data has to leave out.

An entry names a producer and the range from its transaction's first batch to its abort marker; within it, that
producer's transactional batches are void. Ranges of different producers overlap. Entries are kept in the order of their
markers, which is the order they are added in, so finding those of a range of offsets begins with a binary search. Each
also says up to where nothing was undecided when it was added: every later entry begins there or behind, so the search
knows where to end.

Entries derive from the batches, so a scan rebuilds them; the file spares scanning sealed segments and is written
whenever one is sealed and when the log is closed (docs/decisions/0007). Format: docs/formats/aborted-transactions.md.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from pathlib import Path
from typing import Final, NamedTuple

import crc32c

from penstock.errors import CorruptRecords, StorageError
from penstock.records import BatchHeader, read_marker
from penstock.storage.files import Files, read_file, replace_file
from penstock.storage.producers import ProducerTable

ABORTED_FILE: Final = "aborted-transactions"

_MAGIC: Final = b"PSAT"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sII")  # magic, version, entries
_ENTRY: Final = struct.Struct("<qqqq")  # as AbortedTransaction
_CRC: Final = struct.Struct("<I")


class AbortedTransaction(NamedTuple):
    """One producer's batches from ``first_offset`` up to its abort marker at ``last_offset``."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedRanges:
    """An unchanging picture of the entries, for asking about batches one by one, in any thread."""

    __slots__ = ("_ranges",)

    def __init__(self, entries: list[AbortedTransaction]) -> None:
        self._ranges: dict[int, list[AbortedTransaction]] = {}
        for entry in entries:
            self._ranges.setdefault(entry.producer_id, []).append(entry)

    def __contains__(self, header: BatchHeader) -> bool:
        """Whether the batch was written in a transaction that was aborted."""
        if not header.is_transactional or header.is_control:
            return False
        ranges = self._ranges.get(header.producer_id)
        if ranges is None:
            return False
        # One producer's transactions follow each other, so only the first that ends behind the batch can hold it.
        at = bisect_left(ranges, header.base_offset, key=_last_offset)
        return at < len(ranges) and ranges[at].first_offset <= header.base_offset

    def has_marker(self, header: BatchHeader) -> bool:
        """Whether the batch is the marker that an entry names as its end."""
        ranges = self._ranges.get(header.producer_id, [])
        at = bisect_left(ranges, header.base_offset, key=_last_offset)
        return at < len(ranges) and ranges[at].last_offset == header.base_offset


class AbortedTransactions:
    """The index of one log."""

    __slots__ = ("_entries", "_files", "_is_saved", "_path")

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / ABORTED_FILE
        self._entries: list[AbortedTransaction] = []  # by last offset
        self._is_saved = False  # most logs never see an abort, and need not be written at each seal

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> list[AbortedTransaction]:
        return list(self._entries)

    def ranges(self) -> AbortedRanges:
        return AbortedRanges(list(self._entries))

    def between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Every entry that reaches into ``first_offset`` up to, not including, ``end_offset``; by last offset."""
        entries = self._entries
        if not entries or entries[-1].last_offset < first_offset:  # nearly always so, where readers keep up
            return []
        found = []
        for at in range(bisect_left(entries, first_offset, key=_last_offset), len(entries)):
            entry = entries[at]
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                break
        return found

    def add(self, entry: AbortedTransaction) -> None:
        """Note a transaction that was aborted after all others here. One that is known already changes nothing."""
        if not self._entries or entry.last_offset > self._entries[-1].last_offset:
            self._entries.append(entry)
            self._is_saved = False

    def cut(self, end_offset: int) -> None:
        """Forget transactions that were aborted at or after ``end_offset``, as after a truncation."""
        if self._entries and self._entries[-1].last_offset >= end_offset:
            self._keep(self._entries[: bisect_left(self._entries, end_offset, key=_last_offset)])

    def drop_below(self, start_offset: int) -> None:
        """Forget transactions that lie wholly before the log's start."""
        if self._entries and self._entries[0].last_offset < start_offset:
            self._keep(self._entries[bisect_left(self._entries, start_offset, key=_last_offset) :])

    def _keep(self, entries: list[AbortedTransaction]) -> None:
        # In one step: `save` may be running in the thread that syncs.
        self._entries = entries
        self._is_saved = False

    # -- the file -----------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the file, unless it says all this already."""
        if self._is_saved:
            return
        self._is_saved = True  # before the entries are looked at: what is added meanwhile counts as not saved
        entries = list(self._entries)
        body = _HEADER.pack(_MAGIC, _VERSION, len(entries)) + b"".join(_ENTRY.pack(*entry) for entry in entries)
        try:
            replace_file(self._files, self._path, body + _CRC.pack(crc32c.crc32c(body)))
        except StorageError:
            self._is_saved = False
            raise

    def load(self) -> bool:
        """Read the file; False if there is none or it is damaged."""
        data = read_file(self._files, self._path)
        entries = None if data is None else _decode(data)
        if entries is None:
            return False
        self._entries = entries
        self._is_saved = True
        return True


def note_marker(
    producers: ProducerTable, batch: memoryview, header: BatchHeader, base_offset: int
) -> AbortedTransaction | None:
    """Let a producer's stored marker end its transaction; what it aborted, if it did.

    A control batch of a kind that is not known here ends nothing.
    """
    try:
        marker = read_marker(batch)
    except CorruptRecords:
        return None
    ended = producers.end(header, base_offset, marker)
    if ended is None or ended.is_commit:
        return None
    return AbortedTransaction(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)


def _decode(data: bytes) -> list[AbortedTransaction] | None:
    body = data[: -_CRC.size]
    if len(body) < _HEADER.size or crc32c.crc32c(body) != _CRC.unpack_from(data, len(body))[0]:
        return None
    magic, version, count = _HEADER.unpack_from(body)
    if (magic, version, len(body)) != (_MAGIC, _VERSION, _HEADER.size + count * _ENTRY.size):
        return None
    return [AbortedTransaction._make(row) for row in _ENTRY.iter_unpack(memoryview(body)[_HEADER.size :])]


def _last_offset(entry: AbortedTransaction) -> int:
    return entry.last_offset
