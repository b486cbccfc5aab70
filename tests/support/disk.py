"""A small disk of its own for one test: a tmpfs that can be filled, emptied and made read-only."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

_CHUNK_BYTES = 64 * 1024


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


@functools.cache
def can_mount() -> bool:
    """Whether this process may mount a tmpfs."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as probe:
        try:
            _run("mount", "-t", "tmpfs", "tmpfs", probe)
            _run("umount", probe)
        except (OSError, subprocess.SubprocessError):
            return False
    return True


class Disk:
    """A mounted tmpfs of a fixed size."""

    def __init__(self, path: Path, *, size_mb: int) -> None:
        self.path = path
        self._size_mb = size_mb

    def __enter__(self) -> Disk:
        self.path.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={self._size_mb}m", "tmpfs", str(self.path))
        return self

    def __exit__(self, *exc: object) -> None:
        _run("umount", "--lazy", str(self.path))

    @property
    def _filler(self) -> Path:
        return self.path / "filler"

    def fill(self) -> None:
        """Leave no byte free."""
        with self._filler.open("ab", buffering=0) as file:
            size = _CHUNK_BYTES
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def free(self) -> None:
        """Give back what `fill` took."""
        self._filler.unlink()

    def make_read_only(self) -> None:
        _run("mount", "-o", "remount,ro", str(self.path))
