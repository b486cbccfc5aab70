"""Putting one compacted segment in the place of several, so that a crash leaves either the old ones or the new one.

The new segment is written beside the old ones as ``{base}-{end}.cleaned`` and synced. Renaming it to ``.swap`` is the
decision: from then on the old files from ``base`` up to ``end`` are garbage, whatever of them a crash leaves behind.
They are removed, durably, before the swap file takes the first one's name, so that nothing is told twice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from penstock.storage.files import Files
from penstock.storage.segment import log_path

_SWAP: Final = re.compile(r"(\d{20})-(\d{20})\.swap")
_SEGMENT: Final = re.compile(r"(\d{20})\.(log|index)")


def cleaned_path(directory: Path, base_offset: int, end_offset: int) -> Path:
    return directory / f"{base_offset:020}-{end_offset:020}.cleaned"


def commit_swap(files: Files, directory: Path, base_offset: int, end_offset: int) -> None:
    """Let the cleaned file, whole and synced, stand for all segments from ``base_offset`` up to ``end_offset``."""
    cleaned = cleaned_path(directory, base_offset, end_offset)
    files.rename(cleaned, cleaned.with_suffix(".swap"))
    files.sync_directory(directory)
    _finish(files, directory, base_offset, end_offset)


def finish_swaps(files: Files, directory: Path) -> None:
    """Finish what a crash interrupted."""
    for entry in files.entries(directory):
        if match := _SWAP.fullmatch(entry.name):
            files.sync_directory(directory)  # the name may be there without being durable yet
            _finish(files, directory, int(match[1]), int(match[2]))


def _finish(files: Files, directory: Path, base_offset: int, end_offset: int) -> None:
    for entry in files.entries(directory):
        if not (match := _SEGMENT.fullmatch(entry.name)):
            continue
        base, kind = int(match[1]), match[2]
        if base_offset < base < end_offset or (base == base_offset and kind == "index"):
            files.remove(directory / entry.name)
    files.sync_directory(directory)
    swap = cleaned_path(directory, base_offset, end_offset).with_suffix(".swap")
    files.rename(swap, log_path(directory, base_offset))
    files.sync_directory(directory)
