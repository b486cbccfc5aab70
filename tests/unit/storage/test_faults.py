"""Full, failing and read-only disks: a clear error, nothing lost, and writing goes on when it can."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.storage.samples import DIRECTORY, SMALL, append, fill, make_batch, open_log, read_all

from penstock.errors import DiskFull, LogFailed, StorageError
from penstock.storage.config import LogConfig
from penstock.storage.data_directory import DataDirectory
from penstock.storage.files import DiskFile, DiskFiles
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles


def test_a_full_disk_refuses_the_batch_and_takes_it_when_there_is_space() -> None:
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, 10)
    log.sync()
    files.capacity_bytes = sum(entry.size for entry in files.entries(DIRECTORY)) + 20
    with pytest.raises(DiskFull):
        append(log, make_batch())
    assert log.end_offset == 10
    assert read_all(log) == stored
    assert log.sync() == 10
    files.capacity_bytes = None
    assert append(log, make_batch()) == 10
    log.close()
    assert open_log(files).end_offset == 11


def test_a_full_disk_does_not_stop_retention_or_a_clean_stop() -> None:
    files = MemoryFiles()
    log = open_log(files, LogConfig(segment_bytes=1500, retention_ms=1_000))
    fill(log, 50)
    log.sync()
    files.capacity_bytes = 0
    assert log.expire(now_ms=100_000)
    log.close()
    again = open_log(files, LogConfig(segment_bytes=1500))
    assert again.end_offset == 50


def test_an_index_that_cannot_be_written_is_written_later() -> None:
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, 50)
    files.capacity_bytes = 0
    assert log.sync() == 50
    assert not [entry for entry in files.entries(DIRECTORY) if entry.name.endswith(".index")]
    assert log.settled_segments == []
    files.capacity_bytes = None
    log.sync()
    assert len(log.settled_segments) == len(log.segments) - 1
    files.crash()
    assert read_all(open_log(files)) == stored


def test_a_failed_sync_stops_writing_until_a_restart() -> None:
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, 5)
    log.sync()
    fill(log, 2)
    files.is_failing_syncs = True
    with pytest.raises(LogFailed, match="check the disk"):
        log.sync()
    files.is_failing_syncs = False
    assert log.durable_offset == 5
    for action in (lambda: append(log, make_batch()), log.sync):
        with pytest.raises(LogFailed):
            action()
    assert read_all(log)[:5] == stored, "reads go on"
    log.close()
    files.crash()
    again = open_log(files)
    assert read_all(again)[:5] == stored
    append(again, make_batch())


@pytest.mark.parametrize("has_rolled", [False, True])
def test_what_a_failed_sync_dropped_is_written_again_before_it_is_believed(has_rolled: bool) -> None:
    for seed in range(5):
        files = MemoryFiles(seed=seed)
        log = open_log(files)
        fill(log, 5)
        log.sync()
        fill(log, 50 if has_rolled else 2)
        files.is_failing_syncs = True
        with pytest.raises(LogFailed):
            log.sync()
        files.is_failing_syncs = False
        files.crash(keeps_unsynced=True)  # only the process is started anew
        again = open_log(files)
        believed = again.durable_offset
        found = read_all(again)
        append(again, make_batch())
        again.sync()
        files.crash()
        assert read_all(open_log(files))[:believed] == found


def test_a_sync_that_fails_during_recovery_is_not_forgotten() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 20)
    files.crash(keeps_unsynced=True)
    files.is_failing_syncs = True
    with pytest.raises(StorageError):
        open_log(files)
    files.is_failing_syncs = False
    again = open_log(files)
    found = read_all(again)
    assert again.durable_offset == 20
    files.crash()
    assert read_all(open_log(files)) == found


def test_a_log_is_written_again_only_after_a_sync_has_failed() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 5)
    files.crash(keeps_unsynced=True)
    stamps = {entry.name: files.open(DIRECTORY / entry.name).changed_ns() for entry in files.entries(DIRECTORY)}
    open_log(files)
    name = f"{0:020}.log"
    assert files.open(DIRECTORY / name).changed_ns() == stamps[name]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; as root a real one, else a limit on the size of files stands in for it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode == 0:
        yield disk
        subprocess.run(["umount", "--lazy", disk], check=True)
        return
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, limits[1]))
    yield disk
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def fill_up(log: Log) -> None:
    for _ in range(100):
        append(log, make_batch(value=bytes(10_000)))


def test_a_short_write_on_a_real_full_disk_is_rolled_back(small_disk: Path) -> None:
    log = Log.open(DiskFiles(), small_disk / "orders" / "0", LogConfig(segment_bytes=1 << 20))
    with pytest.raises(StorageError):
        fill_up(log)
    count = log.end_offset
    assert 10 < count < 30
    path = small_disk / "orders" / "0" / f"{0:020}.log"
    assert path.stat().st_size == log.size_bytes
    assert len(read_all(log)) == count
    assert log.sync() == count
    log.close()
    again = Log.open(DiskFiles(), small_disk / "orders" / "0", LogConfig(segment_bytes=1 << 20))
    assert again.end_offset == count
    assert again.bytes_cut == 0


def test_a_file_size_limit_is_an_error_that_leaves_nothing_behind(tmp_path: Path) -> None:
    script = (
        "import resource, sys, pathlib\n"
        "from penstock.storage.files import DiskFile\n"
        "from penstock.errors import DiskFull, StorageError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "file = DiskFile(pathlib.Path(sys.argv[1]), create=True)\n"
        "file.write(bytes(600))\n"
        "try:\n"
        "    file.write(bytes(600))\n"
        "except StorageError as error:\n"
        "    assert not isinstance(error, DiskFull), error\n"
        "    assert 'File too large' in error.message, error\n"
        "    sys.exit(0 if file.size == 600 == pathlib.Path(sys.argv[1]).stat().st_size else 3)\n"
        "sys.exit(4)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, tmp_path / "file"], check=False).returncode == 0


def test_a_file_that_cannot_be_written_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    DiskFile(path, create=True).write(b"content")
    fd = os.open(path, os.O_RDONLY)
    try:
        read_only = DiskFile(Path(f"/proc/self/fd/{fd}"), create=False)
        assert read_only.read(0, 100) == b"content"
    finally:
        os.close(fd)


def test_a_read_only_directory_is_a_clear_error(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with pytest.raises(StorageError, match="Cannot create /proc/penstock"):
        Log.open(DiskFiles(), Path("/proc/penstock/0"), SMALL)
    with pytest.raises(StorageError, match="Cannot open"):
        DiskFiles().open(disk / "missing")


def test_a_slice_keeps_its_file_readable_after_it_was_deleted(tmp_path: Path) -> None:
    log = Log.open(DiskFiles(), tmp_path / "orders" / "0", SMALL)
    stored = fill(log, 60)
    log.sync()
    part = log.read(0, 1 << 20, log.end_offset)
    assert part is not None
    log.delete_files(log.trim(50))
    assert not (tmp_path / "orders" / "0" / f"{0:020}.log").exists()
    assert stored[0] == part.read()[: len(stored[0])]


def test_disk_files_do_what_their_twin_does(tmp_path: Path) -> None:
    for files, root in ((DiskFiles(), tmp_path), (MemoryFiles(), tmp_path)):
        directory = root / "a" / "b"
        files.make_directory(directory)
        file = files.open(directory / "x", create=True)
        file.write(b"hello ")
        file.write(memoryview(b"world"))
        assert (file.size, file.current_size(), file.read(6, 100)) == (11, 11, b"world")
        file.truncate(5)
        file.sync()
        assert files.entries(directory) == [("x", 5)]
        files.rename(directory / "x", directory / "y")
        files.sync_directory(directory)
        assert [files.exists(directory / name) for name in "xy"] == [False, True]
        files.remove(directory / "y")
        files.remove(directory / "y")
        assert files.entries(directory) == []
        assert files.free_bytes(directory) > 0
        files.remove_tree(root / "a")
        assert not files.exists(directory)


def test_files_and_directories_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = DiskFiles()
        data = DataDirectory(files, tmp_path / "some" / "data", 1)
        log = Log.open(files, data.partition("orders", 0), SMALL)
        fill(log, 60)
        log.close()
        data.close()
    finally:
        os.umask(before)
    found = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}
