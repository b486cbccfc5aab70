"""A note in a log's directory that recovery cut something off it, until somebody has been told.

A torn write and damage to the last batches look alike once they are cut. So whoever keeps copies elsewhere wants to
know of every cut, also where the node stops again before it could say so.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from penstock.errors import StorageError
from penstock.storage.files import Files, replace_file

log = logging.getLogger(__name__)

DOUBT_FILE: Final = "doubtful"


def note_doubt(files: Files, directory: Path) -> None:
    """Note it durably, before anything is cut. Where the disk refuses, this life knows of it all the same."""
    try:
        replace_file(files, directory / DOUBT_FILE, b"cut\n")
    except StorageError as error:
        log.warning("That %s was cut could not be noted: %s", directory, error.message)


def is_doubt_noted(files: Files, directory: Path) -> bool:
    return files.exists(directory / DOUBT_FILE)


def forget_doubt(files: Files, directory: Path) -> None:
    """Everybody who has to know of it does."""
    path = directory / DOUBT_FILE
    try:
        if files.exists(path):
            files.remove(path)
    except StorageError as error:
        log.warning("%s is still there, though it is of no use any more: %s", path, error.message)
