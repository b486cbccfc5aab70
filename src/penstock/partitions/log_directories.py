"""The directories that replicas lie in: opened, claimed for one topic, and put away when they are not needed.

Nothing is removed because it is not known: a directory of which no metadata tells stays where it is. What goes is moved
out of the topics' namespace first, so that a crash in between leaves nothing that looks like a replica, and a restart
removes nothing else. What is moved is told by the id in it, never by its name alone: any name may be a topic's.

What a node knew to be committed, kept in one small file, so that it knows roughly as much after a restart.

For each replica: its high watermark and its last stable offset. The file may be some seconds old: what was committed
then is committed still. Where it is missing or damaged nothing is known, and a leader tells again. Format:
docs/formats/watermarks.md.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from penstock.errors import PenstockError
from penstock.model import TopicPartition
from penstock.storage.config import LogConfig
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import Files, read_file, replace_file
from penstock.storage.log import Log
from penstock.storage.state_files import decode_checked, encode_checked, load_json, save_json

log = logging.getLogger(__name__)


WATERMARKS_FILE: Final = "watermarks"


class SavedOffsets(NamedTuple):
    high_watermark: int
    last_stable_offset: int


NOTHING_KNOWN: Final = SavedOffsets(0, 0)

Key = tuple[UUID, int]


class Watermarks:
    """The file of one data directory."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / WATERMARKS_FILE
        self._saved: dict[Key, SavedOffsets] | None = None

    def load(self) -> dict[Key, SavedOffsets]:
        """What was saved last."""
        rows = load_json(self._files, self._path, dict[str, dict[str, SavedOffsets]]) or {}
        return {
            (UUID(topic), int(partition)): known
            for topic, partitions in rows.items()
            for partition, known in partitions.items()
        }

    def save(self, known: dict[Key, SavedOffsets]) -> None:
        """Write the file, unless it says all this already. Runs in any thread, one at a time."""
        if known == self._saved:
            return
        rows: dict[str, dict[str, SavedOffsets]] = {}
        for (topic, partition), each in known.items():
            rows.setdefault(str(topic), {})[str(partition)] = each
        save_json(self._files, self._path, rows)
        self._saved = known


_TOPIC_ID_FILE: Final = "topic-id"
# Where versions before this one put what they were removing, or had found in another topic's place.
_OLD_DELETED: Final = re.compile(r".+\.deleted-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_OLD_STRAY: Final = re.compile(r".+\.stray-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class LogDirectories:
    """The logs in one data directory. Every method runs in any thread."""

    def __init__(self, files: Files, data: DataDirectory) -> None:
        self._files = files
        self._data = data
        self._claims = threading.Lock()  # the partitions of a topic are opened side by side and share its directory
        self._moves = threading.Lock()  # which name is free is true until the next one is taken

    def open(self, name: TopicPartition, topic_id: UUID, config: LogConfig) -> Log:
        directory = self._data.partition(*name)
        with self._claims:
            self._claim(directory.parent, topic_id)
        return Log.open(self._files, directory, config)

    def _claim(self, directory: Path, topic_id: UUID) -> None:
        """Make sure that a topic's directory holds this topic and not an older one of the same name."""
        found = self._topic_in(directory)
        if found is not None and found != str(topic_id):
            stray = self._move(directory, self._data.stray, found)
            log.error("%s holds another topic's records; they were moved to %s.", directory, stray)
            found = None
        if found is None:
            self._files.make_directory(directory)
            replace_file(self._files, directory / _TOPIC_ID_FILE, encode_checked(str(topic_id).encode()))

    def _topic_in(self, directory: Path) -> str | None:
        """The id of the topic that a directory holds; None if that cannot be told."""
        data = read_file(self._files, directory / _TOPIC_ID_FILE)
        found = None if data is None else decode_checked(data)
        return None if found is None else found.decode()

    def _move(self, directory: Path, parent: Path, name: str) -> Path:
        """Move a directory under another one, by a name that is not taken yet."""
        self._files.make_directory(parent)
        with self._moves:
            target = next(
                path
                for path in (parent / (f"{name}.{number}" if number else name) for number in count())
                if not self._files.exists(path)
            )
            self._files.rename(directory, target)
        return target

    def remove_topic(self, topic: str, topic_id: UUID) -> None:
        """Remove all that is here of a topic."""
        directory = self._data.logs / topic
        try:
            found = self._topic_in(directory)
            if found not in {None, str(topic_id)}:
                log.error("%s was to be removed, but holds topic %s; it is left as it is.", directory, found)
                return
            self._files.remove_tree(self._move(directory, self._data.deleted, str(topic_id)))
        except PenstockError as error:
            log.error("%s is of no use any more and still there: %s", directory, error.message)

    def remove_partition(self, name: TopicPartition, topic_id: UUID) -> None:
        """Remove one partition of a topic that stays."""
        directory = self._data.partition(*name)
        try:
            self._files.remove_tree(self._move(directory, self._data.deleted, f"{topic_id}-{name.partition}"))
        except PenstockError as error:
            log.error("%s is of no use any more and still there: %s", directory, error.message)

    def clear(self, topics: Collection[str]) -> None:
        """Finish removing what was being removed when the node stopped."""
        for directory in self._files.directories(self._data.logs):
            if directory == self._data.deleted:
                for doomed in self._files.directories(directory):
                    self._try_to_remove(doomed)
            elif directory.name in topics or directory == self._data.stray or _OLD_STRAY.fullmatch(directory.name):
                continue
            elif self._was_being_removed(directory):
                self._try_to_remove(directory)
            else:
                log.warning("%s belongs to no topic of this cluster; it is left as it is.", directory)

    def _try_to_remove(self, directory: Path) -> None:
        try:
            self._files.remove_tree(directory)
        except PenstockError as error:
            log.error("%s is of no use any more and still there: %s", directory, error.message)

    def _was_being_removed(self, directory: Path) -> bool:
        """Whether an older version named a directory so to remove it, and it is not a topic of such a name.

        A topic's directory has the topic's own id in it. That of a partition has neither an id nor directories.
        """
        match = _OLD_DELETED.fullmatch(directory.name)
        if match is None:
            return False
        found = self._topic_in(directory)
        return found == match[1] or (found is None and not self._files.directories(directory))


def close_log(log: Log) -> PenstockError | None:
    """Sync and close a log; what the disk had against it, if anything."""
    try:
        log.close()
    except PenstockError as error:
        return error
    finally:
        log.release()
    return None
