"""A note in a log's directory that a sync of it failed, for the next process that opens it.

After a sync that failed, Linux takes the pages for written: they are read from memory, and later syncs have nothing to
do. A process that finds them would believe them durable. So recovery writes them once more where it finds this note.
The lie lasts as long as the memory of the kernel, and the note needs to last no longer: it is not synced. See
docs/decisions/0018.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from penstock.errors import StorageError
from penstock.storage.files import Files

log = logging.getLogger(__name__)

NOTE_FILE: Final = "sync-failed"


def note_failed_sync(files: Files, directory: Path) -> None:
    """Have the next process write again what it finds."""
    try:
        files.open(directory / NOTE_FILE, create=True)
    except StorageError as error:
        log.error(
            "That a sync of %s failed could not be noted: %s Restart the machine and not only the node: its memory may "
            "show records that are not on the disk.",
            directory,
            error.message,
        )


def is_failed_sync_noted(files: Files, directory: Path) -> bool:
    return files.exists(directory / NOTE_FILE)


def forget_failed_sync(files: Files, directory: Path) -> None:
    """All that is there was written again, and synced."""
    files.remove(directory / NOTE_FILE)
