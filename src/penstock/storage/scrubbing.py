"""The check of one segment that is not being read, a part at a time.

Readers check what they are given, so damage to old records shows when they are wanted, which may be when the last
other copy is gone. A check reads everything again: checksums, the order of offsets, leader epochs, that the file is as
long as it was, and that the index beside it is whole. What it finds is noted in the segment, as if a reader had met it.
"""

from __future__ import annotations

from penstock.storage.files import Files
from penstock.storage.index import Index
from penstock.storage.segment import Segment, index_path


class SegmentCheck:
    """One pass over one segment. `step` runs in any thread; the log must not be rewritten during a step."""

    __slots__ = ("_end", "_files", "_is_settled", "_known", "_position", "has_repaired_index", "is_done", "segment")

    def __init__(self, files: Files, segment: Segment, *, is_settled: bool) -> None:
        self._files = files
        self.segment = segment
        self._is_settled = is_settled  # then nothing else writes its index
        self._known = segment.damage
        self._position = 0
        self._end = segment.size  # what is written from now on is no concern of this
        self.is_done = False
        self.has_repaired_index = False

    @property
    def has_found_damage(self) -> bool:
        """Whether anything is wrong that was not known before."""
        return any(hole not in self._known for hole in self.segment.damage)

    def step(self, max_bytes: int) -> int:
        """Check a few more bytes; how many were read. `StorageError` where the disk refuses."""
        segment, position = self.segment, self._position
        file = segment.file
        is_cold = not file.is_cached(position)
        self._position = segment.verify_part(position, max_bytes)
        read_bytes = min(max_bytes, self._end - position)
        if is_cold:
            file.let_go(position, self._position - position)
        if self._position >= self._end:
            self._check_index()
            self.is_done = True
        return read_bytes

    def _check_index(self) -> None:
        """Write a damaged index anew. Not where the log is damaged too: it may be all that tells how much there was."""
        segment = self.segment
        if not self._is_settled or segment.damage:
            return
        path = index_path(segment.directory, segment.base_offset)
        if Index.load(self._files, path, segment.base_offset, segment.size) is None:
            segment.save_index()
            self.has_repaired_index = True
