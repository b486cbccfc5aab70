"""File descriptors: a log that goes lets go of its files, and running out of them fails nothing for good."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.storage.samples import SMALL, append, fill, make_batch, open_log, read_all

from penstock.errors import LogFailed, StorageError, TooManyOpenFiles
from penstock.storage.commit import GroupCommit
from penstock.storage.files import DiskFiles, SpareDescriptors
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles


def open_under(directory: Path) -> list[str]:
    """The files under a directory that this process has open, deleted ones too."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return [path for path in found if path.startswith(str(directory))]


@contextmanager
def without_collector() -> Iterator[None]:
    """As in a node, where the collector does not look at what start-up made."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_released_log_has_no_file_open_and_slices_are_read_to_their_end(tmp_path: Path) -> None:
    with without_collector():
        log = Log.open(DiskFiles(), tmp_path / "orders" / "0", SMALL)
        stored = fill(log, 60)
        log.sync()
        assert read_all(log) == stored
        assert open_under(tmp_path)
        part = log.read(0, 1 << 20, log.end_offset)
        assert part is not None
        log.release()
        assert len(open_under(tmp_path)) == 1
        assert part.read()[: len(stored[0])] == stored[0]
        del part
        assert open_under(tmp_path) == []


def test_a_released_log_never_reads_what_another_one_put_in_its_place(tmp_path: Path) -> None:
    log = Log.open(DiskFiles(), tmp_path / "orders" / "0", SMALL)
    fill(log, 60)
    log.sync()
    log.release()
    with pytest.raises(StorageError, match="not in use"):
        log.read(0, 1 << 20, log.end_offset)
    with pytest.raises(LogFailed, match="not in use"):
        append(log, make_batch())
    assert log.begin_sync() is None


def test_a_sync_without_a_descriptor_is_tried_again_and_fails_nothing() -> None:
    for call in range(1, 20):
        files = MemoryFiles()
        log = open_log(files)
        stored = fill(log, 30)
        files.fail_with, files.fail_at = errno.EMFILE, files.calls + call
        try:
            log.sync()
        except TooManyOpenFiles:
            assert log.failure is None, files.last_call
            assert log.sync() == 30
        files.fail_at = None
        files.crash()
        assert read_all(open_log(files)) == stored, files.last_call


def test_group_commit_syncs_when_there_is_a_descriptor_again() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 30)
    synced: list[Log] = []
    commit = GroupCommit(lambda log, _: synced.append(log), threads=1, open_kernel=lambda: None)
    try:
        files.fail_with, files.fail_at = errno.EMFILE, files.calls + 1
        commit.request(log)
        commit.wait(log)
    finally:
        commit.close()
    assert log.failure is None
    assert log.durable_offset == 30
    assert synced


def test_spare_descriptors_are_used_when_there_are_no_others_and_kept_again() -> None:
    spares = SpareDescriptors(2)
    refusals = [errno.EMFILE, errno.ENFILE]

    def action() -> str:
        if refusals:
            raise OSError(refusals.pop(), "no more")
        return "done"

    assert spares.used_by(action) == "done"
    assert len(spares) == 0
    assert spares.used_by(lambda: len(spares)) == 2
    refusals[:] = [errno.EMFILE] * 3
    with pytest.raises(OSError, match="no more"):
        spares.used_by(action)
    spares.close()
    assert len(spares) == 0


def test_the_nodes_own_files_can_be_opened_when_all_descriptors_are_taken(tmp_path: Path) -> None:
    """In a process of its own, because its limit is lowered."""
    script = f"""
import os, resource
from pathlib import Path
from penstock.errors import TooManyOpenFiles
from penstock.storage.files import DiskFiles, replace_file
files = DiskFiles(spares=4)
directory = Path({str(tmp_path)!r})
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for number in range(20):
    replace_file(files, directory / f"file-{{number}}", b"content")
assert len(files.entries(directory)) == 20
kept = []
try:
    while True:
        kept.append(files.open(directory / "file-0"))
except TooManyOpenFiles as error:
    assert len(kept) == 4, len(kept)
    assert "ulimit" in error.message
os.close(taken.pop())
kept.append(files.open(directory / "file-1"))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_log_is_released_without_help_of_the_collector(tmp_path: Path) -> None:
    """What tells of a refusing disk must not tie a log to itself."""
    with without_collector():
        log = Log.open(DiskFiles(), tmp_path / "orders" / "0", SMALL)
        refused: list[Log] = []
        log.on_refused = refused.append
        fill(log, 3)
        del log
        assert open_under(tmp_path) == []
