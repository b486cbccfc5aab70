"""Opening a log costs the same however much sealed data it has."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.unit.storage.samples import append, fill, make_batch, open_log

from penstock.storage.config import LogConfig
from penstock.storage.files import DiskFile, DiskFiles, File
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles


class UnsyncedFile(DiskFile):
    def sync(self) -> None:
        return


class CountingFiles(DiskFiles):
    """Real files that are never synced, to be quick, and that count what is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def open(self, path: Path, *, create: bool = False) -> File:
        self.opened.append(path.name)
        return UnsyncedFile(path, create=create)

    def sync_directory(self, directory: Path) -> None:
        return


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_thousand_sealed_segments_open_in_under_a_second(tmp_path: Path, is_clean: bool) -> None:
    files = CountingFiles()
    directory = tmp_path / "orders" / "0"
    config = LogConfig(segment_bytes=1_000)
    log = Log.open(files, directory, config)
    for number in range(1_001):
        append(log, make_batch(value=bytes(900), producer_id=7, sequence=number))
        log.sync()
    assert len(log.segments) == 1_001
    if is_clean:
        log.close()
    best = 9.0
    for _ in range(3):
        started = time.perf_counter()
        again = Log.open(DiskFiles(), directory, config)
        best = min(best, time.perf_counter() - started)
    assert again.end_offset == 1_001
    assert len(again.producers) == 1
    assert best < 1.0
    files.opened.clear()
    Log.open(files, directory, config)
    assert len(files.opened) < 10, "sealed segments are opened when they are read, not before"


def test_a_restart_reads_as_much_of_a_large_log_as_of_a_small_one() -> None:
    read_bytes = []
    for batches in (50, 800):
        files = MemoryFiles()
        log = open_log(files)
        fill(log, batches, producer_id=3)
        log.close()
        before = files.bytes_read
        open_log(files)
        read_bytes.append(files.bytes_read - before)
    assert max(read_bytes) < 1.5 * min(read_bytes)
    assert max(read_bytes) < 4_000


def test_searching_by_time_opens_no_segment_that_is_too_old(tmp_path: Path) -> None:
    files = CountingFiles()
    log = Log.open(files, tmp_path / "orders" / "0", LogConfig(segment_bytes=1_000))
    for number in range(200):
        append(log, make_batch(value=bytes(900), timestamp=number))
    log.close()
    log = Log.open(files, tmp_path / "orders" / "0", LogConfig(segment_bytes=1_000))
    files.opened.clear()
    found = log.find_time(150)
    assert found is not None
    assert found.offset == 150
    assert len([name for name in files.opened if name.endswith(".log")]) == 1
