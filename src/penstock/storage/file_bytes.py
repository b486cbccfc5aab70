"""The bytes of a log file, for whoever checks them: read in windows, and never mapped.

A page that the disk cannot read is an error to ``read`` and ends the process where it is mapped (SIGBUS). So nothing
maps a log. An unreadable page comes as filler instead, which is part of no batch: the batches around it fail their
checksums, and become a hole like any other damage.
"""

from __future__ import annotations

from typing import Final

import crc32c

from penstock.storage.files import File, read_around

WINDOW_BYTES: Final = 256 * 1024


class FileBytes:
    """The first ``size`` bytes of a file, or all that there are."""

    __slots__ = ("_file", "_start", "_window", "_window_bytes", "size", "unreadable_to")

    def __init__(self, file: File, size: int | None = None, *, window_bytes: int = WINDOW_BYTES) -> None:
        self._file = file
        self._start = 0
        self._window = memoryview(b"")
        self._window_bytes = window_bytes
        self.unreadable_to = -1  # the end of the last page that could not be read
        there = file.current_size()  # a stranger may have cut it
        self.size = there if size is None else min(size, there)

    def at(self, position: int, size: int) -> memoryview:
        """``size`` bytes from ``position``; fewer at the end. They stay what they are, whatever is read next."""
        start = position - self._start
        if start < 0 or start + size > len(self._window):
            wanted = min(max(size, self._window_bytes), self.size - position)
            if wanted < size:
                size = max(wanted, 0)
            self._window = memoryview(read_around(self._file, position, max(wanted, 0), self._on_unreadable))
            self._start, start = position, 0
        return self._window[start : start + size]

    def _on_unreadable(self, end: int) -> None:
        self.unreadable_to = max(self.unreadable_to, end)

    def from_here(self, position: int, size: int) -> memoryview:
        """As `at`, and whatever else lies ready behind it."""
        start = position - self._start
        if start < 0 or start + size > len(self._window):
            self.at(position, size)
            start = position - self._start
        return self._window[start:]

    def crc(self, start: int, end: int) -> int:
        """The CRC32C of a range, however large."""
        crc = 0
        while start < end:
            part = self.at(start, min(end - start, WINDOW_BYTES))
            if not part:
                break
            crc = crc32c.crc32c(part, crc)
            start += len(part)
        return crc
