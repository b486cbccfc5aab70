"""The twin loses what a disk may lose, and nothing that it promised to keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import DiskFull, StorageError
from penstock.storage.files import File, read_file, replace_file
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


def changed_outcomes(change: Callable[[MemoryFiles, File], None], synced: bytes) -> set[bytes]:
    """What may be left of a synced file when power goes after some changes."""
    found = set()
    for seed in range(400):
        files = MemoryFiles(seed=seed)
        file = files.open(ROOT / "x", create=True)
        file.write(synced)
        file.sync()
        files.sync_directory(ROOT)
        change(files, file)
        files.crash()
        found.add(read_file(files, ROOT / "x") or b"")
    return found


def test_bytes_written_over_are_old_or_new_and_no_byte_behind_them_goes() -> None:
    found = changed_outcomes(lambda _, file: file.patch(2, b"XX"), b"synced")
    assert found == {b"synced", b"syXXed"}


def test_what_was_added_after_a_patch_may_be_lost_from_any_byte_on() -> None:
    def patch_and_add(_: MemoryFiles, file: File) -> None:
        file.patch(2, b"XX")
        file.write(b"tail")

    found = changed_outcomes(patch_and_add, b"synced")
    assert {len(content) for content in found} == set(range(len(b"synced"), len(b"syncedtail") + 1))
    assert {b"synced", b"syXXed", b"syXXedtail"} <= found


def test_what_was_added_behind_a_cut_may_be_lost_from_any_byte_on() -> None:
    def cut_and_add(_: MemoryFiles, file: File) -> None:
        file.truncate(2)
        file.write(b"tail")

    found = changed_outcomes(cut_and_add, b"synced")
    assert {b"synced", b"sy", b"syt", b"syta", b"sytai", b"sytail"} <= found


def test_what_a_failed_sync_dropped_at_the_end_may_be_missing_after_a_later_one() -> None:
    def fail_and_sync(files: MemoryFiles, file: File) -> None:
        file.write(b"a" * 2_000)
        files.is_failing_syncs = True
        with pytest.raises(StorageError):
            file.sync()
        files.is_failing_syncs = False
        file.sync()

    found = changed_outcomes(fail_and_sync, b"b" * 1_024)
    assert all(content.startswith(b"b" * 1_024) and not content[1_024:].strip(b"\0") for content in found)
    assert len({len(content) for content in found}) > 10


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
