"""Directories of replicas: only what was being removed is removed, whatever topics are called."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from tests.unit.storage.samples import fill, read_all

from penstock.model import TOPIC_NAME_CHARS_MAX, TopicPartition, check_topic_name
from penstock.partitions.log_directories import LogDirectories
from penstock.storage.config import LogConfig
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import DiskFiles, Files, replace_file
from penstock.storage.state_files import encode_checked
from penstock.testing.files import MemoryFiles

SOME_ID = UUID(int=1 << 100)
# Names that look like our own files, directories and leftovers. All of them may name a topic.
NAMES = (
    "users.deleted-v1",
    f"users.deleted-{SOME_ID}",
    f"users-0.deleted-{SOME_ID}",
    f"users.stray-{SOME_ID}",
    "topic-id",
    "0",
    "00000000000000000000.log",
    "00000000000000000000-00000000000000000009.swap",
    "x.cleaned",
    "x.tmp",
    "meta.properties",
    "...",
    "-",
    "deleted",
    "__x",
    "__queue.users",
    "n" * TOPIC_NAME_CHARS_MAX,
)
CONFIG = LogConfig()


@pytest.fixture(params=["memory", "disk"])
def files(request: pytest.FixtureRequest) -> Files:
    return MemoryFiles() if request.param == "memory" else DiskFiles()


@pytest.fixture
def data(files: Files, tmp_path: Path) -> DataDirectory:
    return DataDirectory(files, tmp_path / "data", 1)


def write(shelf: LogDirectories, name: str, topic_id: UUID) -> list[bytes]:
    log = shelf.open(TopicPartition(name, 0), topic_id, CONFIG)
    stored = fill(log, 3)
    log.close()
    return stored


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_of_any_name_is_there_after_a_restart(files: Files, data: DataDirectory, name: str) -> None:
    check_topic_name(name)
    topic_id = uuid4()
    stored = write(LogDirectories(files, data), name, topic_id)
    for known in ([name], []):  # also where metadata does not tell of it, or not yet
        shelf = LogDirectories(files, data)
        shelf.clear(known)
        assert read_all(shelf.open(TopicPartition(name, 0), topic_id, CONFIG)) == stored


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_of_any_name_can_be_deleted_and_made_again(files: Files, data: DataDirectory, name: str) -> None:
    shelf = LogDirectories(files, data)
    for _ in range(2):
        topic_id = uuid4()
        write(shelf, name, topic_id)
        shelf.remove_topic(name, topic_id)
        assert not files.exists(data.logs / name)
        assert files.directories(data.deleted) == []


def test_a_partition_of_a_topic_with_a_long_name_can_be_removed(files: Files, data: DataDirectory) -> None:
    shelf, topic_id, name = LogDirectories(files, data), uuid4(), NAMES[-1]
    write(shelf, name, topic_id)
    shelf.remove_partition(TopicPartition(name, 0), topic_id)
    assert files.exists(data.logs / name)
    assert not files.exists(data.partition(name, 0))
    assert files.directories(data.deleted) == []


def test_what_was_being_removed_goes_at_the_next_start(files: Files, data: DataDirectory) -> None:
    shelf, topic_id = LogDirectories(files, data), uuid4()
    stored = write(shelf, "kept", uuid4())
    write(shelf, "gone", topic_id)
    files.make_directory(data.deleted)
    files.rename(data.logs / "gone", data.deleted / str(topic_id))
    assert stored
    LogDirectories(files, data).clear(["kept"])
    assert files.directories(data.deleted) == []
    assert files.exists(data.partition("kept", 0))


def test_a_second_removal_does_not_stumble_over_the_first(files: Files, data: DataDirectory) -> None:
    shelf, topic_id = LogDirectories(files, data), uuid4()
    files.make_directory(data.deleted / f"{topic_id}-0" / "left")
    write(shelf, "orders", topic_id)
    shelf.remove_partition(TopicPartition("orders", 0), topic_id)
    assert not files.exists(data.partition("orders", 0))


def test_a_topic_is_not_removed_in_the_place_of_one_that_is_gone(files: Files, data: DataDirectory) -> None:
    shelf, topic_id = LogDirectories(files, data), uuid4()
    stored = write(shelf, "orders", topic_id)
    shelf.remove_topic("orders", uuid4())
    assert read_all(shelf.open(TopicPartition("orders", 0), topic_id, CONFIG)) == stored


def test_records_of_an_older_topic_are_moved_aside(files: Files, data: DataDirectory) -> None:
    name = NAMES[-1]
    shelf, older = LogDirectories(files, data), uuid4()
    write(shelf, name, older)
    assert read_all(shelf.open(TopicPartition(name, 0), uuid4(), CONFIG)) == []
    assert files.directories(data.stray) == [data.stray / str(older)]
    LogDirectories(files, data).clear([name])
    assert files.directories(data.stray) == [data.stray / str(older)]


def old_leftover(files: Files, data: DataDirectory, name: str, topic_id: UUID | None) -> Path:
    """What an earlier version left: a topic's directory with its id in it, or a partition's, which has none."""
    directory = data.logs / name
    files.make_directory(directory if topic_id is None else directory / "0")
    if topic_id is not None:
        replace_file(files, directory / "topic-id", encode_checked(str(topic_id).encode()))
    return directory


def test_leftovers_of_earlier_versions_are_removed(files: Files, data: DataDirectory) -> None:
    topic_id = uuid4()
    topic = old_leftover(files, data, f"orders.deleted-{topic_id}", topic_id)
    partition = old_leftover(files, data, f"orders-3.deleted-{topic_id}", None)
    LogDirectories(files, data).clear(["orders"])
    assert not files.exists(topic)
    assert not files.exists(partition)


def test_leftovers_that_may_be_topics_stay(files: Files, data: DataDirectory) -> None:
    topic_id = uuid4()
    name = f"orders.deleted-{topic_id}"
    known = old_leftover(files, data, name, topic_id)
    other = old_leftover(files, data, f"others.deleted-{topic_id}", uuid4())
    doubtful = old_leftover(files, data, f"users.deleted-{topic_id}", None)
    files.make_directory(doubtful / "0")
    LogDirectories(files, data).clear([name])
    assert [files.exists(path) for path in (known, other, doubtful)] == [True, True, True]
