"""A mark that a node is running, which stays behind if it does not stop in good order.

It names the boot of the machine. A process that is killed loses nothing that it wrote, because the system still has it;
a machine that goes down loses what was not synced. So if the mark of another boot is found, writes may be lost.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from penstock.storage.checked import decode_checked, encode_checked
from penstock.storage.files import Files, read_file, replace_file

log = logging.getLogger(__name__)

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
