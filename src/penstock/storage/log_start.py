"""Where a log begins, kept in a small file because records can be deleted up to the middle of a segment."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from penstock.storage.checked import decode_checked, encode_checked
from penstock.storage.files import Files, read_file, replace_file

START_FILE: Final = "log-start"


def load_start(files: Files, directory: Path) -> int:
    """The saved start; 0 where none was saved or the file is damaged, so that nothing readable is hidden."""
    data = read_file(files, directory / START_FILE)
    body = None if data is None else decode_checked(data)
    return 0 if body is None else msgspec.json.decode(body, type=int)


def save_start(files: Files, directory: Path, offset: int) -> None:
    replace_file(files, directory / START_FILE, encode_checked(msgspec.json.encode(offset)))
