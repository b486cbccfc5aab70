"""The state of a node's disk: whether it takes writes, and whether the machine lost some when it went down.

A full disk refuses a write, and takes them again once there is space: a small file is written now and then to find that
out, because producers stay away meanwhile. A log that failed to sync stays closed until the next start.

`RunningMark` names the boot of the machine while the node runs, and stays behind if the node does not stop in good
order. A killed process loses nothing that it wrote, because the system still has it; a machine that goes down loses
what was not synced. So if the mark of another boot is found, writes may be lost.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.errors import StorageError
from penstock.storage.files import Files, read_file, replace_file
from penstock.storage.log import Log
from penstock.storage.state_files import decode_checked, encode_checked

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
        """Whether other nodes should lead."""
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

    async def probe(self) -> None:
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


_FILE: Final = "running"


class RunningMark:
    """The file ``running`` in a data directory."""

    def __init__(self, files: Files, directory: Path, boot_id: str) -> None:
        self._files = files
        self._path = directory / _FILE
        self._boot_id = boot_id
        data = read_file(files, self._path)
        found = None if data is None else decode_checked(data)
        self._is_set = found == boot_id.encode()
        # One that cannot be read was there all the same.
        self.was_powered_off = data is not None and not self._is_set

    def set(self) -> None:
        if self._is_set:
            return  # a killed process left it, and the disk may be full by now
        replace_file(self._files, self._path, encode_checked(self._boot_id.encode()))

    def clear(self) -> None:
        """The node has stopped in good order."""
        self._files.remove(self._path)
