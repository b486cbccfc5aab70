"""Room on the disk that a member keeps for bad days: a file that is given up when there is no space left.

Partitions may fill a disk to its last byte. A node that starts then still has to note its term and its registration, or
nobody could read what is there. A few pages are enough for that.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from penstock.errors import StorageError
from penstock.storage.files import Files

log = logging.getLogger(__name__)

RESERVE_BYTES: Final = 256 * 1024
_PLENTY: Final = 64  # times as much has to be free for the reserve to be made


class Reserve:
    """The file; whoever finds the disk full spends it."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._is_there = files.exists(path)

    def fill(self) -> None:
        """Make the file where it is missing and the disk has plenty of room."""
        if self._is_there:
            return
        try:
            if self._files.free_bytes(self._path.parent) < RESERVE_BYTES * _PLENTY:
                return
            self._files.open(self._path, create=True).write(bytes(RESERVE_BYTES))
            self._is_there = True
        except StorageError as error:
            log.debug("No room could be reserved at %s: %s", self._path, error.message)

    def spend(self) -> bool:
        """Give the room back; whether there was any."""
        if not self._is_there:
            return False
        self._files.remove(self._path)
        self._is_there = False
        return True
