"""Small files beside the data: each is one line of JSON behind its CRC32C, so that a person can read them too.

Of a log there are three: where it begins (records can be deleted up to the middle of a segment), that recovery has cut
it, and that a sync of it failed.

After a sync that failed, Linux takes the pages for written: they are read from memory, and later syncs have nothing to
do. A process that finds them would believe them durable. So recovery writes them once more where it finds this note.
The lie lasts as long as the memory of the kernel, and the note needs to last no longer: it is not synced. See
docs/decisions/0018.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, TypeVar

import crc32c
import msgspec

from penstock.errors import StorageError
from penstock.storage.files import Files, read_file, replace_file

log = logging.getLogger(__name__)

START_FILE: Final = "log-start"
CUT_FILE: Final = "doubtful"
FAILED_SYNC_FILE: Final = "sync-failed"

T = TypeVar("T")


def encode_checked(body: bytes) -> bytes:
    return b"%08x %s\n" % (crc32c.crc32c(body), body)


def decode_checked(data: bytes) -> bytes | None:
    """The body, or None if any bit of the file is wrong."""
    stated, separator, body = data.rstrip(b"\n").partition(b" ")
    if not separator:
        return None
    return body if stated == b"%08x" % crc32c.crc32c(body) else None


def load_json(files: Files, path: Path, kind: type[T]) -> T | None:
    """What a file says; None if there is none or it is damaged."""
    data = read_file(files, path)
    body = None if data is None else decode_checked(data)
    return None if body is None else msgspec.json.decode(body, type=kind)


def save_json(files: Files, path: Path, value: object) -> None:
    """Have a file say something else, durably and in one step."""
    replace_file(files, path, encode_checked(msgspec.json.encode(value)))


# -- of a log ----------------------------------------------------------------------------------------------------------


def load_start(files: Files, directory: Path) -> int:
    """The saved start; 0 where none was saved or the file is damaged, so that nothing readable is hidden."""
    return load_json(files, directory / START_FILE, int) or 0


def save_start(files: Files, directory: Path, offset: int) -> None:
    save_json(files, directory / START_FILE, offset)


def note_cut(files: Files, directory: Path) -> None:
    """Note durably that a log is cut, before anything is. Where the disk refuses, this process knows all the same.

    A torn write and damage to the last batches look alike once they are cut. So the controller has to know of every
    cut, also where the node stops again before it could report it.
    """
    try:
        replace_file(files, directory / CUT_FILE, b"cut\n")
    except StorageError as error:
        log.warning("That %s was cut could not be noted: %s", directory, error.message)


def is_cut_noted(files: Files, directory: Path) -> bool:
    return files.exists(directory / CUT_FILE)


def forget_cut(files: Files, directory: Path) -> None:
    """The controller knows of it."""
    path = directory / CUT_FILE
    try:
        if files.exists(path):
            files.remove(path)
    except StorageError as error:
        log.warning("%s is still there, though it is of no use any more: %s", path, error.message)


def note_failed_sync(files: Files, directory: Path) -> None:
    """Have the next process write again what it finds."""
    try:
        files.open(directory / FAILED_SYNC_FILE, create=True)
    except StorageError as error:
        log.error(
            "That a sync of %s failed could not be noted: %s Restart the machine and not only the node: its memory may "
            "show records that are not on the disk.",
            directory,
            error.message,
        )


def is_failed_sync_noted(files: Files, directory: Path) -> bool:
    return files.exists(directory / FAILED_SYNC_FILE)


def forget_failed_sync(files: Files, directory: Path) -> None:
    """All that is there was written again, and synced."""
    files.remove(directory / FAILED_SYNC_FILE)
