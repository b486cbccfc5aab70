"""Small scripts that stand before a program, where the program itself cannot be told what they tell it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from zlib import crc32

from penstock.errors import InvalidConfig


def place_script(kind: str, name: str, text: str) -> Path:
    """Put a script into ``bin`` of a directory of its own, in the user's cache or else a temporary one; its path."""
    places = (_cache_directory(), Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}")
    for base in places:
        path = base / f"{kind}-{crc32(text.encode()):08x}" / "bin" / name
        try:
            _write(path, text)
        except OSError:
            continue  # such as a home directory that is read-only
        return path
    raise InvalidConfig(f"Neither {places[0]} nor {places[1]} can be written to, where a script for {name} would be.")


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "penstock"


def _write(path: Path, text: str) -> None:
    """Put the script in place as a whole: several processes may do so at once, and one may be starting by it."""
    if path.exists() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).chmod(stat.S_IRWXU)
    Path(name).replace(path)
