"""One segment of a log: a file of batches, its index, and what is known to be wrong with it.

Only the last segment of a log is written. A sealed one never changes, so it opens its file and loads its index when it
is first read: opening a log costs the same however much sealed data there is, and `OpenSegments` keeps few files open.

Bytes are *proven* while they lie in memory as this process wrote or checked them. All others are checked against their
checksums before they are handed out: what came from the disk, whenever it does, and what another process touched. Bytes
that are decoded here are checked every time. What fails, or cannot be read at all, is a hole that reads step over
(docs/decisions/0017).
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.errors import DamagedRecords, StorageError
from penstock.records import HEADER_BYTES, BatchHeader, parse_header
from penstock.storage.epochs import LeaderEpochs
from penstock.storage.files import File, Files, FileSlice, read_around
from penstock.storage.index import NO_TIMESTAMP, Index, peek_index, stated_size
from penstock.storage.ranges import Hole, Holes, Ranges
from penstock.storage.scan import WINDOW_BYTES, FileBytes, first_bad, pass_good, scan


class OpenSegments:
    """Keeps a log from holding a file and an index open for every sealed segment that was ever read."""

    __slots__ = ("_limit", "_opened", "epochs", "has_damage")

    def __init__(self, limit: int = 16) -> None:
        self._limit = limit
        self.epochs: LeaderEpochs | None = None  # which of them wrote what, once that is known
        self.has_damage = False  # a hole was found in one of the log's segments, if perhaps not any more
        self._opened: deque[Segment] = deque()

    def note(self, segment: Segment) -> None:
        self._opened.append(segment)
        if len(self._opened) > self._limit:
            self._opened.popleft().release()

    def forget(self, segment: Segment) -> None:
        """Hold on no longer to a segment that left its log, or the space of its deleted file would not be freed."""
        while segment in self._opened:
            self._opened.remove(segment)


log = logging.getLogger(__name__)

_STEP: Final = struct.Struct(">qi11xi")  # base offset, length, last offset delta
_STEP_BYTES: Final = _STEP.size
_LENGTH_OVERHEAD: Final = 12
_CHUNK_BYTES: Final = 8192
_VERIFY_BYTES: Final = 1 << 18
_FOUND_MAX: Final = 64


def log_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020}.log"


def index_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020}.index"


class Segment:
    """A run of consecutive batches in one file, from ``base_offset`` on."""

    __slots__ = (
        "_file",
        "_files",
        "_found",
        "_index",
        "_is_discarded",
        "_last_base",
        "_last_position",
        "_max_timestamp",
        "_missing",
        "_opened",
        "_proven",
        "_stamp_ns",
        "_written_from",
        "base_offset",
        "created_ms",
        "directory",
        "holes",
        "index_interval_bytes",
        "is_sealed",
        "misdated",
        "scrubbed_at",
        "size",
    )

    def __init__(
        self,
        files: Files,
        directory: Path,
        base_offset: int,
        size: int = 0,
        *,
        index_interval_bytes: int,
        is_sealed: bool = False,
        opened: OpenSegments | None = None,
    ) -> None:
        self._files = files
        self._opened = opened
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self.is_sealed = is_sealed
        self.index_interval_bytes = index_interval_bytes
        self.holes = Holes()
        self.misdated = Holes()  # whole batches whose leader epoch or offset is not believed: served, but not copied
        self.created_ms: int | None = None  # when retention first saw a record in it: segments also roll by age
        self.scrubbed_at: float | None = None  # when all of it was last checked, by a clock of this process
        self._is_discarded = False
        self._file: File | None = None
        self._index: Index | None = None
        self._max_timestamp: int | None = None  # of a sealed segment, once it was asked for
        self._missing: Hole | None = None  # the file was longer when its index was saved
        self._written_from = size  # bytes before this one came from the disk
        self._proven = Ranges()  # and these of them have been checked
        self._stamp_ns = -1
        self._last_base = -1  # the last batch written here: most reads are for it
        self._last_position = 0
        self._found: dict[int, int] = {}  # while unsealed: positions that readers asked for or will ask for next

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset} in {self.directory.name}, {self.size} bytes>"

    @property
    def file(self) -> File:
        file = self._file
        if file is None:
            self._check_in_use()
            file = self._file = self._files.open(log_path(self.directory, self.base_offset))
            if self.is_sealed and self._opened is not None:
                self._opened.note(self)
        return file

    @property
    def index(self) -> Index:
        index = self._index
        if index is None:
            self._check_in_use()
            path = index_path(self.directory, self.base_offset)
            index = Index.load(self._files, path, self.base_offset, self.size) or self._rebuild_index()
            self._index = index
        return index

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch here. The next segment may begin later, but not earlier."""
        return self.index.next_offset

    @property
    def max_timestamp(self) -> int:
        if self._max_timestamp is not None:
            return self._max_timestamp
        if self._index is not None or not self.is_sealed:
            return self.index.max_timestamp
        path = index_path(self.directory, self.base_offset)
        summary = peek_index(self._files, path, self.base_offset, self.size)
        self._max_timestamp = self.index.max_timestamp if summary is None else summary.max_timestamp
        return self._max_timestamp

    @property
    def newest_ms(self) -> int:
        """What retention goes by: the largest timestamp, or when the file was last written if no record has one."""
        newest = self.max_timestamp
        return newest if newest != NO_TIMESTAMP else self.file.changed_ns() // 1_000_000

    @property
    def oldest_ms(self) -> int:
        """The time of the first record; where it has none, when the file was last written."""
        first = parse_header(self.file.read(0, HEADER_BYTES)).base_timestamp
        return first if first != NO_TIMESTAMP else self.file.changed_ns() // 1_000_000

    @property
    def index_bytes(self) -> int:
        """How large the index is, or will be once it is written."""
        return (self._index or self.index).size_bytes

    def create(self, reserved_bytes: int = 0) -> None:
        """Make the file of a new, empty segment, with room on the disk for so many bytes."""
        self._file = self._files.open(log_path(self.directory, self.base_offset), create=True)
        assert self._file.size == 0, "a new segment never writes over an old one"
        self._index = Index(self.base_offset)
        if reserved_bytes:
            self._file.reserve(reserved_bytes)

    def adopt(self, index: Index, *, is_checked: bool) -> None:
        """Take an index that was just loaded, or built by a scan that checked every byte."""
        self._index = index
        self.size = index.log_size
        self._written_from = 0 if is_checked else self.size

    def adopt_file(self, file: File) -> None:
        """Take a file that is open already under another name."""
        self._file = file

    def append(self, batch: memoryview, header: BatchHeader, base_offset: int) -> None:
        """Write one batch, whole or not at all."""
        file = self._file or self.file
        file.write(batch)
        position = self.size
        (self._index or self.index).add(header, base_offset, position, self.index_interval_bytes)
        self._last_base = base_offset
        self._last_position = position
        self.size = position + len(batch)

    def sync(self) -> None:
        self.file.sync()

    def save_index(self) -> None:
        """Write the index, which marks the log file as needing no scan. The log must be synced before.

        One that tells of more than is there stays: nothing else would tell the next life.
        """
        index = self.index
        if self._missing is None:
            index.save(self._files, index_path(self.directory, self.base_offset))

    def seal(self) -> None:
        """Write no more. What this process wrote itself needs no check, unless another process touches the file."""
        self.is_sealed = True
        self._last_base = -1
        self._found.clear()
        self.file.reserve(0)
        self._stamp_ns = self.file.stamp_ns()

    def settle(self) -> None:
        """The index is on disk, so from now on it and the file may be let go of when they are not in use."""
        if self._opened is not None:
            self._opened.note(self)

    def release(self) -> None:
        """Close what can be opened again. Slices that were handed out keep their file."""
        if self._index is not None:
            self._max_timestamp = self._index.max_timestamp
        self._file = self._index = None

    def discard(self) -> None:
        """Let go of the file for good: another log may be where this one was."""
        self.release()
        self._is_discarded = True

    @property
    def has_file(self) -> bool:
        """Whether it has its file open."""
        return self._file is not None

    def _check_in_use(self) -> None:
        if self._is_discarded:
            raise StorageError(f"{self.directory} is not in use here any more. Ask for metadata again.")

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, limit: int) -> FileSlice | None:
        """Whole batches from the one that holds ``offset`` on, at most up to position ``limit``.

        At least one batch is returned, however large; None where there is none up to the limit.
        """
        position = self.locate(offset)
        while position < limit:
            end = self._end_of_read(position, max_bytes, limit)
            self._verify(position, end)
            if self.holes:
                end = self.holes.clip(position, end)
            if end > position:
                return FileSlice(self.file, position, end - position, self._offset_at(end), self)
            past = self.holes.skip(position)
            if past == position:
                return None
            position = past
        return None

    def _offset_at(self, position: int) -> int:
        """The offset of the batch at a boundary; -1 where damage leaves that unknown."""
        if position == self.size:
            return (self._index or self.index).next_offset
        return -1 if self.holes else int.from_bytes(self._read(position, 8), "big")

    def locate(self, offset: int) -> int:
        """The position of the batch that holds ``offset``, or of the next one if none does."""
        index = self._index or self.index
        if offset >= index.next_offset:
            return self.size
        if 0 <= self._last_base <= offset:
            return self._last_position
        position = self._found.get(offset)
        if position is None:
            position = self._find(offset, *index.around(offset))
            self._remember(offset, position)
        return position

    def _remember(self, offset: int, position: int) -> None:
        if len(self._found) >= _FOUND_MAX:
            self._found.clear()
        if not self.is_sealed:  # whose file a stranger may change under us
            self._found[offset] = position

    def _find(self, offset: int, position: int, following: int) -> int:
        """Step from an indexed batch to the one that holds ``offset``, before the next indexed one."""
        self._verify(position, following)
        if not self.holes:
            chunk = self._read(position, min(following - position, _CHUNK_BYTES))
            at, last, unpack = 0, len(chunk) - _STEP_BYTES, _STEP.unpack_from
            while at <= last:
                base_offset, length, delta = unpack(chunk, at)
                if base_offset + delta >= offset:
                    return position + at
                if length < 0:
                    break
                at += length + _LENGTH_OVERHEAD
            position += at
        return next((start for start, next_offset, _ in self.walk(position) if next_offset > offset), self.size)

    def walk(self, position: int = 0) -> Iterator[tuple[int, int, int]]:
        """(position, next offset, size) of each batch from a boundary on: checked, and without the holes."""
        end = self.size
        chunk, chunk_start = b"", position
        verified_to = position
        while position < end:
            if position >= verified_to:
                verified_to = min(end, position + _VERIFY_BYTES)
                self._verify(position, verified_to)
            at = position - chunk_start
            if at + _STEP_BYTES > len(chunk):
                chunk, chunk_start, at = self._read(position, _CHUNK_BYTES), position, 0
            if self.holes and (past := self.holes.skip(position)) != position:
                position = past
                continue
            if len(chunk) - at < _STEP_BYTES:
                return
            base_offset, length, delta = _STEP.unpack_from(chunk, at)
            size = length + _LENGTH_OVERHEAD
            if size < _STEP_BYTES or delta < 0 or base_offset < self.base_offset:
                self._check(position, end)  # our own bytes, damaged since we wrote them
                if self.holes.skip(position) == position:
                    return
                continue
            yield position, base_offset + delta + 1, size
            position += size

    def position_before_time(self, timestamp: int) -> int:
        """A batch boundary at or before the first batch that reaches ``timestamp``."""
        return self.index.position_before_time(timestamp)

    def _end_of_read(self, position: int, max_bytes: int, limit: int) -> int:
        index = self._index or self.index
        if limit - position <= max_bytes:
            if limit == self.size:
                self._remember(index.next_offset, limit)
            return limit
        boundary, offset = index.row_before(position + max_bytes)
        if boundary > position:
            self._remember(offset, boundary)
            return boundary
        end = position
        for start, _, size in self.walk(position):
            if start > position and start + size - position > max_bytes:
                break
            end = start + size
        return end

    def offset_before(self, position: int) -> int:
        """The offset that is due at a position: behind the last good batch before it."""
        begin, due = self.index.row_before(position - 1)
        for start, next_offset, _ in self.walk(begin):
            if start >= position:
                break
            due = next_offset
        return due

    def position_to_cut(self, offset: int) -> int:
        """Where the file has to end so that nothing of ``offset`` or behind is left, nor damage that may have been."""
        behind = (hole.start for hole in self.damage if self.offset_before(hole.start) >= offset)
        return min(self.locate(offset), *behind, self.size)

    def offset_behind(self, position: int) -> int:
        """The offset of the first good batch at or behind a position; -1 if there is none here."""
        return next((int.from_bytes(self._read(start, 8), "big") for start, _, _ in self.walk(position)), -1)

    # -- damage -------------------------------------------------------------------------------------------------------

    def verify(self) -> Holes:
        """Check every byte again, whatever is remembered, and return the holes."""
        self._check(0, self.size)
        return self.holes

    @property
    def is_suspect(self) -> bool:
        """Whether some of it came from the disk and was not checked since."""
        return not self._proven.covers(0, self._written_from)

    def verify_part(self, start: int, size: int) -> int:
        """Check some bytes again, and a few more; where to go on. Runs in any thread."""
        self._notice_change()  # first: what is found from here on is not to be forgotten by the next reader
        return max(self._check(start, min(start + size, self.size)), start + size)

    def note_missing(self, missing: Hole) -> None:
        """The file was longer when its index was saved: remember that for as long as it is not copied anew."""
        self._missing = missing
        self.note_hole(missing)

    def note_hole(self, hole: Hole) -> None:
        """Remember damage, once, as one range where it overlaps what is known already."""
        whole = self.holes.add(hole)
        if whole is None:
            return
        if self._opened is not None:
            self._opened.has_damage = True
        log.error(
            "%s is corrupt in bytes %d to %d: these records are not served. The file is kept as it is; "
            "run 'penstock log inspect' on its directory to see what is lost.",
            log_path(self.directory, self.base_offset),
            whole.start,
            whole.end,
        )

    @property
    def damage(self) -> list[Hole]:
        """All that is wrong here, in order, served or not."""
        return sorted((*self.holes, *self.misdated))

    def note_misdated(self, batches: Hole) -> None:
        """Remember whole batches whose leader epoch cannot have written them, or whose offset nothing proves, once."""
        if self.misdated.add(batches) is None:
            return
        if self._opened is not None:
            self._opened.has_damage = True
        log.error(
            "%s has an epoch or offset that cannot be believed in bytes %d to %d. The records themselves are good.",
            log_path(self.directory, self.base_offset),
            batches.start,
            batches.end,
        )

    def read_checked(self, file: File, position: int, size: int) -> bytes:
        """Whole batches, to be decoded; `DamagedRecords` where they are not what was written.

        ``file`` is the one that a slice was handed out with: the log may have let go of it since.
        """
        data = read_around(file, position, size)
        if len(data) == size and first_bad(memoryview(data)) is None:
            return data
        self.look_again(position, size)
        raise DamagedRecords(
            f"{log_path(self.directory, self.base_offset)} is damaged between bytes {position} and {position + size}. "
            "Try again: a sound replica answers, or the read goes on behind what is lost."
        )

    def look_again(self, position: int, size: int) -> None:
        """Check these bytes, whatever was known of them. Runs in any thread."""
        self._proven.remove(position, position + size)
        self._check(position, min(position + size, self.size))

    def _read(self, position: int, size: int) -> bytes:
        """Bytes as they are; what cannot be read is noted as damage, and filler."""
        try:
            return self.file.read(position, size)
        except StorageError:
            self.look_again(position, size)
            return read_around(self.file, position, size)

    def _verify(self, start: int, end: int) -> None:
        """Check the batches of a range and note its holes, unless all of it is proven."""
        self._notice_change()
        is_proven = start >= self._written_from or self._proven.covers(start, min(end, self._written_from))
        if not is_proven or not self.file.is_cached(start, end - start):
            self._proven.add(start, self._check(start, end))

    def _notice_change(self) -> None:
        """Forget what is known of a file that was touched since it was sealed or first read."""
        if self.is_sealed and (stamp_ns := self.file.stamp_ns()) != self._stamp_ns:
            self._stamp_ns, self._written_from = stamp_ns, self.size
            self._proven.clear()
            self.holes.clear()
            self.misdated.clear()
            if self._missing is not None:
                self.note_hole(self._missing)

    def _check(self, start: int, end: int) -> int:
        """Note every hole of a range or a little more; how far it looked."""
        position, due = self.index.row_before(start)
        window_bytes = min(WINDOW_BYTES, end - position)
        source = FileBytes(self.file, self.size, window_bytes=window_bytes)
        epochs = None if self._opened is None else self._opened.epochs
        reached, next_offset = pass_good(source, position, due, end, self.next_offset, epochs)
        if reached >= end:
            return reached
        for found in scan(source, reached, next_offset, self.next_offset):
            if isinstance(found, Hole):
                self.note_hole(found)
                reached = found.end
            else:
                reached = found[0] + found[1].size
                if epochs is not None and found[1].leader_epoch != epochs.epoch_at(found[1].base_offset) >= 0:
                    self.note_misdated(Hole(found[0], reached))
            if reached >= end:
                return reached
        if reached < self.size:  # another process cut the file
            self.note_hole(Hole(reached, self.size))
        return self.size

    def _rebuild_index(self) -> Index:
        index = Index(self.base_offset)
        for found in scan(FileBytes(self.file, self.size), 0, self.base_offset):
            if isinstance(found, Hole):
                self.note_hole(found)
            else:
                index.add(found[1], found[1].base_offset, found[0], self.index_interval_bytes)
        index.log_size = self.size
        stated = stated_size(self._files, index_path(self.directory, self.base_offset), self.base_offset)
        if stated > self.size and self.is_sealed:
            self.note_missing(Hole(self.size, stated))
        return index


_WRITE_BYTES: Final = 1 << 20


class SegmentWriter:
    """Gathers batches into large writes to a file of another name."""

    def __init__(self, files: Files, path: Path, base_offset: int, index_interval_bytes: int) -> None:
        files.remove(path)
        self._files = files
        self._path = path
        self._file: File = files.open(path, create=True)
        self._index = Index(base_offset)
        self._interval_bytes = index_interval_bytes
        self._waiting = bytearray()
        self.size = 0

    def add(self, batch: memoryview) -> None:
        header = parse_header(batch)
        self._index.add(header, header.base_offset, self.size, self._interval_bytes)
        self._waiting += batch
        self.size += len(batch)
        if len(self._waiting) >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._file.write(self._waiting)
        self._waiting = bytearray()

    def discard(self) -> None:
        self._file.close()
        self._files.remove(self._path)

    def finish(self, opened: OpenSegments) -> Segment:
        """The new segment, its bytes on disk. Its file must get its name before it is released."""
        if self._waiting:
            self._flush()
        self._file.sync()
        segment = Segment(
            self._files,
            self._path.parent,
            self._index.base_offset,
            index_interval_bytes=self._interval_bytes,
            is_sealed=True,
            opened=opened,
        )
        segment.adopt(self._index, is_checked=True)
        segment.adopt_file(self._file)
        segment.seal()
        return segment
