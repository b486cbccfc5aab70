"""Which segments a log has, kept in a small file, so that one whose files are gone is missed.

Nothing else would tell: offsets may leave gaps between segments, and the first and the last have no neighbour. A
segment is listed once its name is durable, and taken off the list, durably, before its files are removed. So a listed
segment without files was taken away by something else. One that is not listed yet is a segment like any other.

A log of one segment that never had more needs no list: a log that begins anew has no leader epochs.
Runs in any thread. Format: docs/formats/log-directory.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from penstock.errors import DiskFull, StorageError
from penstock.storage.files import Files
from penstock.storage.state_files import load_json, save_json

log = logging.getLogger(__name__)

SEGMENTS_FILE: Final = "segments"


class SegmentList:
    """The base offsets of a log's segments, as its directory has them."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / SEGMENTS_FILE
        self._lock = threading.Lock()
        self._saved = load_json(files, self._path, list[int])
        self._bases = set(self._saved or ())

    @property
    def saved(self) -> list[int] | None:
        """What the file says; None if there is none or it is damaged."""
        return self._saved

    def add(self, find: Callable[[], Iterable[int]]) -> None:
        """List the segments that ``find`` gives, and save the list if it can be. Their names must be durable.

        ``find`` is asked when no segment is being taken off the list, so it gives none whose files are gone.
        """
        with self._lock:
            self._bases.update(find())
            self._try_to_save()

    def try_to_save(self) -> None:
        """Save what could not be saved before."""
        with self._lock:
            self._try_to_save()

    def _try_to_save(self) -> None:
        if self._saved is None and len(self._bases) < 2:
            return
        try:
            self._save()
        except StorageError as error:
            log.warning("%s could not be written yet: %s", self._path, error.message)

    def discard(self, first: int, end: int | None = None) -> None:
        """Take the segments from ``first`` up to ``end`` off the list, durably, before their files are removed."""
        with self._lock:
            self._bases = {base for base in self._bases if base < first or (end is not None and base >= end)}
            try:
                self._save()
            except DiskFull:
                # Removing files is what makes room. No list is better than one that tells of what is gone.
                self._saved = None
                self._files.remove(self._path)
                self._files.sync_directory(self._path.parent)

    def _save(self) -> None:
        bases = sorted(self._bases)
        if bases != self._saved:
            save_json(self._files, self._path, bases)
            self._saved = bases
