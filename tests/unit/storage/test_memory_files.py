"""The twin loses what a disk may lose, and nothing that it promised to keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import DiskFull, StorageError
from penstock.storage.files import read_file, replace_file
from penstock.testing.files import Crash, MemoryFiles

ROOT = Path("/d")


def outcomes(write: bytes, synced: bytes = b"synced ") -> set[bytes | None]:
    found: set[bytes | None] = set()
    for seed in range(200):
        files = MemoryFiles(seed=seed)
        file = files.open(ROOT / "x", create=True)
        file.write(synced)
        file.sync()
        files.sync_directory(ROOT)
        file.write(write)
        files.crash()
        found.add(read_file(files, ROOT / "x"))
    return found


def test_unsynced_bytes_may_be_lost_in_part_and_synced_ones_never() -> None:
    found = outcomes(b"tail")
    assert {b"synced ", b"synced t", b"synced tail"} <= found
    assert all(content is not None and content.startswith(b"synced ") for content in found)


def test_pages_may_be_lost_while_later_ones_survive() -> None:
    assert any(content and b"\0" in content and content.endswith(b"b") for content in outcomes(b"b" * 2_000))


def test_a_name_that_was_not_synced_may_be_lost() -> None:
    found = set()
    for seed in range(50):
        files = MemoryFiles(seed=seed)
        files.open(ROOT / "x", create=True)
        files.crash()
        found.add(files.exists(ROOT / "x"))
    assert found == {True, False}


def test_a_replaced_file_is_old_or_new_and_whole_whenever_the_crash_comes() -> None:
    found = set()
    for seed in range(20):
        for step in range(1, 8):
            files = MemoryFiles(seed=seed)
            replace_file(files, ROOT / "x", b"old")
            files.crash_at = files.steps + step
            try:
                replace_file(files, ROOT / "x", b"newer")
            except Crash:
                files.crash()
            found.add(read_file(files, ROOT / "x"))
    assert found == {b"old", b"newer"}


def test_after_the_crash_nothing_more_happens_until_it_is_over() -> None:
    files = MemoryFiles()
    files.crash_at = 1
    with pytest.raises(Crash):
        files.open(ROOT / "x", create=True)
    with pytest.raises(Crash):
        files.open(ROOT / "y", create=True)
    files.crash()
    files.open(ROOT / "y", create=True)


def test_a_dead_process_loses_nothing_it_wrote() -> None:
    files = MemoryFiles()
    files.open(ROOT / "x", create=True).write(b"content")
    files.crash(keeps_unsynced=True)
    assert read_file(files, ROOT / "x") == b"content"


def test_a_full_disk_takes_all_of_a_write_or_nothing() -> None:
    files = MemoryFiles(capacity_bytes=10)
    file = files.open(ROOT / "x", create=True)
    file.write(b"12345678")
    with pytest.raises(DiskFull):
        file.write(b"9012")
    assert file.size == 8
    files.capacity_bytes = 12
    file.write(b"9012")
    assert files.free_bytes(ROOT) == 0


def test_syncs_fail_on_demand() -> None:
    files = MemoryFiles()
    file = files.open(ROOT / "x", create=True)
    files.is_failing_syncs = True
    for sync in (file.sync, lambda: files.sync_directory(ROOT)):
        with pytest.raises(StorageError):
            sync()


def test_the_same_seed_loses_the_same_things() -> None:
    def run() -> bytes | None:
        files = MemoryFiles(seed=4)
        file = files.open(ROOT / "x", create=True)
        files.sync_directory(ROOT)
        file.write(bytes(range(256)) * 8)
        files.crash()
        return read_file(files, ROOT / "x")

    assert run() == run()
