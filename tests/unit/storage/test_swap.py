"""A crash at any step of a swap leaves all old files or the new one, never a mixture."""

from __future__ import annotations

from contextlib import suppress

from tests.unit.storage.samples import DIRECTORY

from penstock.errors import StorageError
from penstock.storage.files import read_file
from penstock.storage.segment import index_path, log_path
from penstock.storage.segment_list import SegmentList
from penstock.storage.swap import Swap, finish_swaps
from penstock.testing.files import Crash, MemoryFiles

OLD = {log_path(DIRECTORY, base): b"old %d" % base for base in (0, 10, 20)}


def prepared(seed: int) -> MemoryFiles:
    files = MemoryFiles(seed=seed)
    others = {index_path(DIRECTORY, base): b"index" for base in (0, 10, 20, 30)}
    cleaned = {Swap(files, DIRECTORY, 0, 30).cleaned: b"new", log_path(DIRECTORY, 30): b"other"}
    for path, content in (OLD | others | cleaned).items():
        file = files.open(path, create=True)
        file.write(content)
        file.sync()
    files.sync_directory(DIRECTORY)
    return files


def test_a_swap_happens_wholly_or_not_at_all() -> None:
    found = set()
    for step in range(1, 14):
        for seed in range(60):
            files = prepared(seed)
            files.crash_at = files.steps + step
            try:
                swap = Swap(files, DIRECTORY, 0, 30)
                swap.decide()
                swap.settle()
            except Crash:
                files.crash()
            finish_swaps(files, DIRECTORY, SegmentList(files, DIRECTORY))
            files.crash()
            found.add(state_of(files))
    assert found == {"old", "new"}


def state_of(files: MemoryFiles) -> str:
    logs = {path: content for path in OLD if (content := read_file(files, path)) is not None}
    assert read_file(files, log_path(DIRECTORY, 30)) == b"other"
    assert files.exists(index_path(DIRECTORY, 30))
    if logs == {log_path(DIRECTORY, 0): b"new"}:
        assert not files.exists(index_path(DIRECTORY, 0)), "an old index never stands beside a new log"
        return "new"
    assert logs == OLD
    return "old"


def test_a_swap_that_fails_at_any_call_can_be_settled_after_it() -> None:
    found = set()
    for number in range(1, 30):
        files = prepared(number)
        swap = Swap(files, DIRECTORY, 0, 30)
        files.fail_at = files.calls + number
        with suppress(StorageError):
            swap.decide()
            swap.settle()
        files.fail_at = None
        swap.settle()
        finish_swaps(files, DIRECTORY, SegmentList(files, DIRECTORY))
        files.crash()
        found.add(state_of(files))
        assert not [entry.name for entry in files.entries(DIRECTORY) if entry.name.endswith((".cleaned", ".swap"))]
    assert found == {"old", "new"}
