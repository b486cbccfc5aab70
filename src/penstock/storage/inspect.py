"""Looking at a log's directory from outside: what is in it, and what is wrong with it.

Read-only, and safe on a directory that a node is using: a segment that retention removes meanwhile is left out, and
what is being written at the moment looks like a torn tail. Everything is checked: checksums, the order of offsets
within and across segments, and that each index agrees with its log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import CorruptRecords, MessageTooLarge, StorageError, UnsupportedCompression
from penstock.records import BatchHeader, Marker, Record, decode_records, read_marker
from penstock.storage.epochs import EpochStart, LeaderEpochs
from penstock.storage.files import Files
from penstock.storage.index import NO_TIMESTAMP, Index
from penstock.storage.ranges import Hole
from penstock.storage.recovery import EPOCHS_FILE
from penstock.storage.scan import FileBytes, scan
from penstock.storage.segment import index_path, log_path
from penstock.storage.state_files import load_start

_LOG_NAME: Final = re.compile(r"(\d{20})\.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReport:
    """What one segment holds."""

    base_offset: int
    next_offset: int
    size_bytes: int
    batches: int
    records: int
    first_timestamp: int  # of the first batch; -1 if there is none
    max_timestamp: int
    has_index: bool
    holes: tuple[Hole, ...]  # damage that reads step over
    torn_tail_bytes: int  # at the end of the log: an unfinished write, which the next start cuts
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """What one log holds."""

    directory: Path
    start_offset: int
    end_offset: int
    epochs: tuple[EpochStart, ...]
    segments: tuple[SegmentReport, ...]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def batches(self) -> int:
        return sum(segment.batches for segment in self.segments)

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def corrupt_bytes(self) -> int:
        return sum(hole.end - hole.start for segment in self.segments for hole in segment.holes)

    @property
    def torn_tail_bytes(self) -> int:
        return sum(segment.torn_tail_bytes for segment in self.segments)

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that is wrong, in words; empty for a sound log. A torn tail is no problem."""
        return tuple(problem for segment in self.segments for problem in segment.problems)


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """One batch at its place."""

    segment: int  # base offset of the segment
    position: int
    header: BatchHeader
    marker: Marker | None = None  # how a transaction ended, if that is what the batch says


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """One record at its place."""

    batch: BatchFacts
    record: Record


def inspect_log(files: Files, directory: Path, *, decodes_records: bool = False) -> LogReport:
    """Read and check everything in a log's directory, the inside of batches too if asked."""
    bases = _list_bases(files, directory)
    segments: list[SegmentReport] = []
    for at, base_offset in enumerate(bases):
        following = bases[at + 1] if at + 1 < len(bases) else None
        try:
            segments.append(_Inspection(files, directory, base_offset, following).run(decodes_records=decodes_records))
        except StorageError:
            if files.exists(log_path(directory, base_offset)):
                raise  # else retention was here first
    epochs = LeaderEpochs(files, directory / EPOCHS_FILE)
    epochs.load()
    start_offset = load_start(files, directory)
    return LogReport(
        directory=directory,
        start_offset=max(start_offset, segments[0].base_offset) if segments else start_offset,
        end_offset=max(start_offset, segments[-1].next_offset) if segments else start_offset,
        epochs=tuple(epochs.items()),
        segments=tuple(segments),
    )


def dump_batches(files: Files, directory: Path, *, offset: int = 0, limit: int | None = None) -> Iterator[BatchFacts]:
    """Every correct batch from the one that holds ``offset`` on, at most ``limit`` of them."""
    for facts, _ in _dump(files, directory, offset):
        if limit is not None and limit <= 0:
            return
        yield facts
        limit = None if limit is None else limit - 1


def dump_records(files: Files, directory: Path, *, offset: int = 0, limit: int | None = None) -> Iterator[RecordFacts]:
    """Every record from ``offset`` on, at most ``limit`` of them; batches that cannot be decoded are left out."""
    for facts, batch in _dump(files, directory, offset):
        for record in _decode(batch) or ():
            if limit is not None and limit <= 0:
                return
            if record.offset >= offset:
                yield RecordFacts(facts, record)
                limit = None if limit is None else limit - 1


def _list_bases(files: Files, directory: Path) -> list[int]:
    matches = (_LOG_NAME.fullmatch(name) for name in files.names(directory))
    return sorted(int(match[1]) for match in matches if match)


def _dump(files: Files, directory: Path, offset: int) -> Iterator[tuple[BatchFacts, memoryview]]:
    bases = _list_bases(files, directory)
    for base_offset, following in zip(bases, [*bases[1:], None], strict=True):
        if following is not None and following <= offset:
            continue
        source = FileBytes(files.open(log_path(directory, base_offset)))
        for found in scan(source, 0, base_offset, following):
            if not isinstance(found, Hole) and found[1].next_offset > offset:
                position, header = found
                batch = source.at(position, header.size)
                yield BatchFacts(base_offset, position, header, _marker_of(batch, header)), batch


def _marker_of(batch: memoryview, header: BatchHeader) -> Marker | None:
    if not header.is_control:
        return None
    try:
        return read_marker(batch)
    except CorruptRecords:
        return None


def _decode(batch: memoryview) -> list[Record] | None:
    try:
        return decode_records(batch)
    except (CorruptRecords, MessageTooLarge, UnsupportedCompression):
        return None


class _Inspection:
    """The check of one segment."""

    def __init__(self, files: Files, directory: Path, base_offset: int, following: int | None) -> None:
        self._files = files
        self._directory = directory
        self._base_offset = base_offset
        self._following = following
        self._source = FileBytes(files.open(log_path(directory, base_offset)))
        self._headers: dict[int, BatchHeader] = {}  # by position
        self._holes: list[Hole] = []
        self._problems: list[str] = []

    def run(self, *, decodes_records: bool) -> SegmentReport:
        size = self._source.size
        for found in scan(self._source, 0, self._base_offset, self._following):
            if isinstance(found, Hole):
                self._holes.append(found)
            else:
                self._headers[found[0]] = found[1]
        torn_bytes = self._take_torn_tail(size)
        for hole in self._holes:
            self._complain(f"bytes {hole.start} to {hole.end} hold no correct batch")
        if decodes_records:
            self._check_records()
        headers = list(self._headers.values())
        has_index = self._files.exists(index_path(self._directory, self._base_offset))
        if has_index:
            self._check_index(size)
        return SegmentReport(
            base_offset=self._base_offset,
            next_offset=headers[-1].next_offset if headers else self._base_offset,
            size_bytes=size,
            batches=len(headers),
            records=sum(header.count for header in headers),
            first_timestamp=headers[0].base_timestamp if headers else NO_TIMESTAMP,
            max_timestamp=max((header.max_timestamp for header in headers if header.count), default=NO_TIMESTAMP),
            has_index=has_index,
            holes=tuple(self._holes),
            torn_tail_bytes=torn_bytes,
            problems=tuple(self._problems),
        )

    def _take_torn_tail(self, size: int) -> int:
        if self._following is None and self._holes and self._holes[-1].end == size:
            torn = self._holes.pop()
            return torn.end - torn.start
        return 0

    def _check_records(self) -> None:
        for position, header in self._headers.items():
            if _decode(self._source.at(position, header.size)) is None:
                self._complain(f"the records of the batch at offset {header.base_offset} cannot be decoded")

    def _check_index(self, size: int) -> None:
        index = Index.load(self._files, index_path(self._directory, self._base_offset), self._base_offset, size)
        if index is None:
            # The last segment's index is from the last clean stop, and stays behind while the log grows.
            if self._following is not None:
                self._complain("its index is damaged or belongs to a log of another size; it is rebuilt when needed")
            return
        for offset, position in index.rows():
            header = self._headers.get(position)
            if header is not None and header.base_offset != offset:
                self._complain(f"its index has offset {offset} at byte {position}, where {header.base_offset} is")
            elif header is None and not any(hole.start <= position < hole.end for hole in self._holes):
                self._complain(f"its index has offset {offset} at byte {position}, where no batch begins")

    def _complain(self, what: str) -> None:
        self._problems.append(f"{log_path(self._directory, self._base_offset).name}: {what}.")
