"""Writing a whole new segment beside the log, as compaction does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.records import parse_header
from penstock.storage.files import File, Files
from penstock.storage.index import Index
from penstock.storage.open_segments import OpenSegments
from penstock.storage.segment import Segment

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
        """The new segment, its bytes on disk. Its file must get its name before anybody lets go of it."""
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
