"""Whether the disk under a node's replicas takes writes, as far as they have noticed.

A full disk refuses a write, and takes them again once there is space: a small file is written now and then to find that
out, because those who would write stay away meanwhile. A log that failed to sync stays closed until the next start.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.errors import StorageError
from penstock.storage.files import Files
from penstock.storage.log import Log

log = logging.getLogger(__name__)

_PROBE_FILE: Final = "probe"
_PROBE_BYTES: Final = 64 * 1024  # so that there is room for more than one batch when it goes on


class Disk:
    """The disk of one data directory."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / _PROBE_FILE
        self._failed: dict[Log, None] = {}
        self.is_full = False

    @property
    def is_unable(self) -> bool:
        """Whether somebody else had better write."""
        return self.is_full or bool(self._failed)

    def refuse(self, refused: Log) -> None:
        """A log could not be written or synced. May be called in any thread."""
        if refused.failure is not None:
            self._failed[refused] = None
        else:
            self.is_full = True

    def forget(self, gone: Log) -> None:
        """A log is not here any more."""
        self._failed.pop(gone, None)

    async def look(self) -> None:
        """Find out whether a disk that was full has space again."""
        if not self.is_full:
            return
        try:
            await asyncio.to_thread(self._probe)
        except StorageError:
            return
        self.is_full = False
        log.warning("There is space on the disk of %s again.", self._path.parent)

    def _probe(self) -> None:
        try:
            with closing(self._files.open(self._path, create=True)) as file:
                file.write(memoryview(bytes(_PROBE_BYTES)))
                file.sync()
        finally:
            self._files.remove(self._path)
