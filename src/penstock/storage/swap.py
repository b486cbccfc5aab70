"""Putting one compacted segment in the place of several, so that a crash leaves either the old ones or the new one.

The new segment is written beside the old ones as ``{base}-{end}.cleaned`` and synced. Renaming it to ``.swap`` is the
decision: once that is durable the old files from ``base`` up to ``end`` are garbage, whatever of them a crash leaves
behind. They are removed, durably, before the swap file takes the first one's name, so that nothing is told twice.

An error leaves a swap where it is. Before the decision it is undone, after it it is finished, and either can be tried
until it succeeds. Until then nothing else may be done to the files of its range: a swap file that is found after a
restart is finished, and removes whatever segments lie in its range by then.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from penstock.storage.files import Files
from penstock.storage.segment import Segment, log_path
from penstock.storage.segment_list import SegmentList

_SWAP: Final = re.compile(r"(\d{20})-(\d{20})\.swap")
_SEGMENT: Final = re.compile(r"(\d{20})\.(log|index)")


class Swap:
    """One compacted segment on its way to the place of all segments from ``base_offset`` up to ``end_offset``."""

    def __init__(self, files: Files, directory: Path, base_offset: int, end_offset: int) -> None:
        self._files = files
        self._directory = directory
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.cleaned = directory / f"{base_offset:020}-{end_offset:020}.cleaned"
        self._swap = self.cleaned.with_suffix(".swap")
        self.new: Segment | None = None  # what was written, to finish with
        self.is_decided = False
        self._has_name = False

    def __repr__(self) -> str:
        return f"<Swap {self.base_offset}..{self.end_offset} in {self._directory}>"

    def decide(self) -> None:
        """Let the cleaned file, whole and synced, count from now on, also after a crash."""
        self._files.rename(self.cleaned, self._swap)
        self._files.sync_directory(self._directory)
        self.is_decided = True

    def settle(self) -> None:
        """Finish what was decided, undo what was not. What fails may be tried again. Runs in any thread."""
        if self.is_decided:
            self._finish()
        else:
            self._undo()

    def _undo(self) -> None:
        self._files.remove(self._swap)
        self._files.remove(self.cleaned)
        self._files.sync_directory(self._directory)

    def _finish(self) -> None:
        if not self._has_name:
            _take_place(self._files, self._directory, self.base_offset, self.end_offset)
            self._has_name = True
        if self.new is not None:
            self.new.save_index()
            self.new.settle()


def finish_swaps(files: Files, directory: Path, listed: SegmentList) -> None:
    """Finish what a crash interrupted."""
    for name in files.names(directory):
        if match := _SWAP.fullmatch(name):
            files.sync_directory(directory)  # the name may be there without being durable yet
            base, end = int(match[1]), int(match[2])
            listed.discard(base + 1, end)
            _take_place(files, directory, base, end)


def _take_place(files: Files, directory: Path, base_offset: int, end_offset: int) -> None:
    for name in files.names(directory):
        if not (match := _SEGMENT.fullmatch(name)):
            continue
        base, kind = int(match[1]), match[2]
        if base_offset < base < end_offset or (base == base_offset and kind == "index"):
            files.remove(directory / name)
    files.sync_directory(directory)
    swap = directory / f"{base_offset:020}-{end_offset:020}.swap"
    if files.exists(swap):  # else it was renamed before, and only that was not durable yet
        files.rename(swap, log_path(directory, base_offset))
    files.sync_directory(directory)
