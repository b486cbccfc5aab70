"""How far a member's log has been promised to others, so that no recovery cuts what was.

A log that stopped in the middle of a write has a torn tail, which is cut when it is opened: nobody was told of it. But
damage to the last entry looks just the same, and that one may have been acknowledged. So after each sync of the log,
and before anybody hears of it, a line is added and synced here that says up to which index the log must reach. It is
lowered before entries are cut because a leader has others in their place. The last whole line counts; the file begins
anew when it has grown. Format: docs/formats/metadata.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import StorageError
from penstock.storage.checked import decode_checked, encode_checked
from penstock.storage.files import File, Files, read_file, replace_file

_SIZE_MAX: Final = 64 * 1024


class Promised:
    """The file that says up to which index a log must reach."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._file: File | None = None
        self.index: int | None = None  # none: nothing was ever promised
        data = read_file(files, path)
        if data is not None:
            self.index = _last_of(data)

    @property
    def exists(self) -> bool:
        return self._files.exists(self._path)

    def note(self, index: int) -> None:
        """Make it durable that the log reaches ``index``, and need not reach further."""
        if index == self.index:
            return
        line = encode_checked(msgspec.json.encode(index))
        if self._file is None or self._file.size > _SIZE_MAX:
            # A whole new file: the end of the one there was may be torn.
            replace_file(self._files, self._path, line)
            self._file = self._files.open(self._path)
        else:
            try:
                self._file.write(line)
                self._file.sync()
            except StorageError:
                self._file = None
                raise
        self.index = index


def _last_of(data: bytes) -> int | None:
    for line in reversed(data.split(b"\n")):
        body = decode_checked(line) if line else None
        if body is not None:
            return msgspec.json.decode(body, type=int)
    return None
