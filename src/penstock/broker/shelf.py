"""The directories that replicas lie in: opened, claimed for one topic, and put away when they are not needed.

Nothing is removed because it is not known: a directory of which no metadata tells stays where it is. What goes is given
another name first, so that a crash in between leaves nothing that looks like a replica.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final
from uuid import UUID

from penstock.errors import PenstockError
from penstock.model import TopicPartition
from penstock.storage.checked import decode_checked, encode_checked
from penstock.storage.config import LogConfig
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Files, read_file, replace_file
from penstock.storage.log import Log

log = logging.getLogger(__name__)

_TOPIC_ID_FILE: Final = "topic-id"
_DELETED: Final = ".deleted-"
_STRAY: Final = ".stray-"


class Shelf:
    """The logs in one data directory. Every method runs in any thread."""

    def __init__(self, files: Files, data: DataDirectory) -> None:
        self._files = files
        self._data = data
        self._claims = threading.Lock()  # the partitions of a topic are opened side by side and share its directory

    def open(self, name: TopicPartition, topic_id: UUID, config: LogConfig) -> Log:
        directory = self._data.partition(*name)
        with self._claims:
            self._claim(directory.parent, topic_id)
        return Log.open(self._files, directory, config)

    def _claim(self, directory: Path, topic_id: UUID) -> None:
        """Make sure that a topic's directory holds this topic and not an older one of the same name."""
        path = directory / _TOPIC_ID_FILE
        data = read_file(self._files, path)
        found = None if data is None else decode_checked(data)
        if found is not None and found.decode() != str(topic_id):
            stray = directory.with_name(f"{directory.name}{_STRAY}{found.decode()}")
            log.error("%s holds another topic's records; they were moved to %s.", directory, stray)
            self._files.rename(directory, stray)
            found = None
        if found is None:
            self._files.make_directory(directory)
            replace_file(self._files, path, encode_checked(str(topic_id).encode()))

    def remove_topic(self, topic: str, topic_id: UUID) -> None:
        """Remove all that is here of a topic."""
        directory = self._data.logs / topic
        self._remove(directory, directory.with_name(f"{topic}{_DELETED}{topic_id}"))

    def remove_partition(self, name: TopicPartition, topic_id: UUID) -> None:
        """Remove one partition of a topic that stays."""
        directory = self._data.partition(*name)
        self._remove(directory, self._data.logs / f"{name}{_DELETED}{topic_id}")

    def _remove(self, directory: Path, doomed: Path) -> None:
        try:
            self._files.rename(directory, doomed)
            self._files.remove_tree(doomed)
        except PenstockError as error:
            log.error("%s is of no use any more and still there: %s", directory, error.message)

    def clear(self, topics: Collection[str]) -> None:
        """Finish removing what was being removed when the node stopped."""
        for directory in self._files.directories(self._data.logs):
            if _DELETED in directory.name:
                self._files.remove_tree(directory)
            elif directory.name not in topics and _STRAY not in directory.name:
                log.warning("%s belongs to no topic of this cluster; it is left as it is.", directory)


def close_log(log: Log) -> PenstockError | None:
    """Sync and close a log; what the disk had against it, if anything."""
    try:
        log.close()
    except PenstockError as error:
        return error
    return None
