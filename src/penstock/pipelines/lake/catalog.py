"""The catalog of a lake: which files count, and which offsets of which topics are in them.

It is a directory of numbered entries, each written as a whole or not at all. A file that no entry names is not there,
however it got there; so whatever wrote it may have been killed. Entries are added by one writer at a time: two of them
meet at the next number, and the second one is refused.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from penstock.errors import InvalidLake

DIRECTORY: Final = "_catalog"  # Spark and others pass over names that begin so
VERSION: Final = 1
CHECKSUM: Final = "xxhash64(timestamp, key, value, headers)"  # of a message, as an expression of Spark

LakePartition = tuple[str, int, int]  # topic, generation, partition


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one partition in one file. ``checksum``: of each message, all of them combined by XOR."""

    partition: int
    first: int
    last: int
    rows: int
    checksum: str
    first_ms: int
    last_ms: int


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file, its path seen from the lake's own directory."""

    path: str
    topic: str
    generation: int
    rows: int
    bytes: int
    ranges: list[Range]


class TopicFact(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it was when it was archived. One that was deleted and made anew is another generation of it."""

    name: str
    id: str
    generation: int
    partitions: int
    settings: dict[str, str] = {}  # that the topic had of its own; empty in lakes of before they were kept


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the lake: files that came, and files whose rows are in those now."""

    version: int = VERSION
    kind: Literal["batch", "compaction"]
    at_ms: int
    topics: list[TopicFact] = []
    added: list[DataFile] = []
    removed: list[str] = []


class Catalog:
    """What the entries come to."""

    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self.files: dict[str, DataFile] = {}
        self.topics: dict[tuple[str, int], TopicFact] = {}
        self.reached: dict[LakePartition, int] = {}  # the first offset that is not in the lake yet
        self.removed: dict[str, int] = {}  # when, of files whose rows are elsewhere now
        self.next_number = 0

    @classmethod
    def load(cls, lake: Path) -> Catalog:
        """The catalog of a lake, empty if there is none yet."""
        catalog = cls(lake)
        catalog.refresh()
        return catalog

    def refresh(self) -> None:
        """Take over entries that came since it was loaded."""
        while (path := _path(self.lake, self.next_number)).exists():
            self._apply(_read(path))

    @property
    def is_empty(self) -> bool:
        return self.next_number == 0

    def _apply(self, entry: CatalogEntry) -> None:
        for topic in entry.topics:
            self.topics[topic.name, topic.generation] = topic
        for path in entry.removed:
            self.files.pop(path, None)
            self.removed[path] = entry.at_ms
        for file in entry.added:
            self.files[file.path] = file
            for each in file.ranges:
                where = (file.topic, file.generation, each.partition)
                self.reached[where] = max(self.reached.get(where, 0), each.last + 1)
        self.next_number += 1

    # -- questions ----------------------------------------------------------------------------------------------------

    def fact_of(self, topic: str, topic_id: str, partitions: int, settings: dict[str, str]) -> TopicFact:
        """The topic as it is now, as the generation that the catalog has it in, or as its next one."""
        known = [fact for (name, _), fact in self.topics.items() if name == topic]
        for fact in known:
            if fact.id == topic_id:
                count = max(partitions, fact.partitions)
                return msgspec.structs.replace(fact, partitions=count, settings=settings)
        return TopicFact(name=topic, id=topic_id, generation=len(known), partitions=partitions, settings=settings)

    def names(self) -> list[str]:
        return sorted({name for name, _ in self.topics})

    def files_of(self, topics: Iterable[str]) -> Iterator[DataFile]:
        wanted = set(topics)
        return (file for file in self.files.values() if file.topic in wanted)


def write_entry(lake: Path, number: int, entry: CatalogEntry) -> None:
    """Write an entry, as a whole and durably; `InvalidLake` if another writer was faster."""
    path = _path(lake, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with written.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(entry), indent=1))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(written, path)  # unlike a rename, it fails where there is one already
    except FileExistsError:
        raise InvalidLake(
            f"Another pipeline writes to the lake {lake}. Stop one of the two, then start the other again."
        ) from None
    finally:
        written.unlink()
    sync_directory(path.parent)


def _path(lake: Path, number: int) -> Path:
    return lake / DIRECTORY / f"{number:012d}.json"


def sync_directory(directory: Path) -> None:
    """Make what was created in a directory survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> CatalogEntry:
    try:
        entry = msgspec.json.decode(path.read_bytes(), type=CatalogEntry)
    except (msgspec.MsgspecError, OSError) as error:
        raise InvalidLake(f"{path} is no entry of a lake's catalog: {error}.") from error
    if entry.version > VERSION:
        raise InvalidLake(f"{path} is of a later version ({entry.version}): use a later Penstock.")
    return entry
