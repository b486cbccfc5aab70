"""Group commit, by the kernel and by threads: who asks hears of it once it holds."""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.storage.samples import fill, open_log

from penstock.storage.commit import GroupCommit, KernelSync
from penstock.storage.config import LogConfig
from penstock.storage.files import DiskFiles
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

needs_kernel = pytest.mark.skipif(KernelSync.open() is None, reason="this kernel does not sync by itself")


class Desk:
    """A group commit whose news are read as an event loop would."""

    def __init__(self, open_kernel: Callable[[], KernelSync | None]) -> None:
        self.heard: list[Log] = []
        self._lock = threading.Lock()
        self.commit = GroupCommit(self._hear, open_kernel=open_kernel)

    def _hear(self, log: Log, seconds: float) -> None:
        assert seconds >= 0
        with self._lock:
            self.heard.append(log)

    def until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_done():
            assert time.monotonic() < deadline, "it was not heard of in time"
            if self.commit.descriptor is not None:
                select.select([self.commit.descriptor], [], [], 0.05)
            for synced in self.commit.reap():
                self._hear(*synced)


@pytest.fixture(params=["kernel", "threads"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    if request.param == "kernel" and KernelSync.open() is None:
        pytest.skip("this kernel does not sync by itself")
    made = Desk(KernelSync.open if request.param == "kernel" else lambda: None)
    assert (made.commit.descriptor is not None) == (request.param == "kernel")
    yield made
    made.commit.close()


def on_disk(directory: Path) -> Log:
    return Log.open(DiskFiles(), directory, LogConfig())


def test_what_was_appended_before_a_request_is_durable_when_it_is_heard_of(desk: Desk, tmp_path: Path) -> None:
    logs = [on_disk(tmp_path / str(number)) for number in range(5)]
    for turn in range(1, 40):
        for log in logs:
            fill(log, 1)
            desk.commit.request(log)
        ends = [log.end_offset for log in logs]
        desk.until(lambda: all(log.durable_offset >= end for log, end in zip(logs, ends, strict=True)))  # noqa: B023
        assert [log.durable_offset for log in logs] == ends, f"turn {turn}"
    for log in logs:
        desk.commit.wait(log)


def test_a_request_during_a_sync_has_it_synced_again(desk: Desk, tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    for _ in range(200):
        fill(log, 1)
        desk.commit.request(log)
    desk.until(lambda: log.durable_offset == log.end_offset)
    assert len(desk.heard) < 200, "one sync serves many"


def test_sealed_segments_are_seen_to(desk: Desk, tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    for _ in range(5):
        fill(log, 3)
        log.roll()
        desk.commit.request(log)
        fill(log, 2)
        desk.commit.request(log)
    desk.until(lambda: log.durable_offset == log.end_offset)
    desk.commit.wait(log)
    assert not log.is_sealing
    assert len(list(tmp_path.glob("*.index"))) == 5


def test_whoever_waits_needs_no_loop(desk: Desk, tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    for _ in range(20):
        fill(log, 1)
        desk.commit.request(log)
    desk.commit.wait(log)
    assert log.durable_offset == log.end_offset


def test_closing_finishes_what_was_asked_for(tmp_path: Path) -> None:
    desk = Desk(KernelSync.open)
    log = on_disk(tmp_path)
    fill(log, 1)
    log.sync()
    fill(log, 5)
    desk.commit.request(log)
    desk.commit.close()
    assert log.durable_offset == log.end_offset


def test_files_in_memory_are_synced_by_threads() -> None:
    desk = Desk(KernelSync.open)
    log = open_log(MemoryFiles())
    fill(log, 1)
    assert log.begin_sync() is None
    desk.commit.request(log)
    desk.until(lambda: log.durable_offset == 1)
    desk.commit.close()


@needs_kernel
def test_a_file_that_cannot_be_synced_is_told_with_its_error() -> None:
    kernel = KernelSync.open()
    assert kernel is not None
    reading, writing = os.pipe()
    if kernel.submit(writing, 7):  # a kernel may also refuse it at once
        assert kernel.reap(5) == [(7, errno.EINVAL)]
    os.close(reading)
    os.close(writing)
    assert not kernel.submit(writing, 8), "a closed descriptor is refused"
    assert kernel.reap() == []
    kernel.close()


def test_a_log_whose_sync_failed_takes_no_more(tmp_path: Path) -> None:
    log = on_disk(tmp_path)
    fill(log, 1)
    log.sync()
    fill(log, 1)
    plain = log.begin_sync()
    assert plain is not None
    log.finish_sync(plain.end_offset, errno.EIO)
    assert log.failure is not None
    assert "Input/output error" in log.failure.message
    assert log.durable_offset == 1
    assert log.begin_sync() is None


@needs_kernel
def test_many_syncs_at_once_are_all_told_of(tmp_path: Path) -> None:
    kernel = KernelSync.open()
    assert kernel is not None
    files = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(300)]
    for number, descriptor in enumerate(files):
        os.pwrite(descriptor, b"x", 0)
        assert kernel.submit(descriptor, number)
        os.close(descriptor)  # the kernel holds the file until it is done
    told: list[int] = []
    while len(told) < len(files):
        finished = kernel.reap(5)
        assert finished
        assert not any(error for _, error in finished)
        told += [number for number, _ in finished]
    assert sorted(told) == list(range(300))
    kernel.close()


def test_a_bug_while_syncing_is_told_to_who_waits_and_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(lambda: None)
    broken, sound = open_log(MemoryFiles()), open_log(MemoryFiles())
    fill(broken, 1)
    fill(sound, 1)
    sync = Log.sync
    monkeypatch.setattr(Log, "sync", lambda log: 1 // 0 if log is broken else sync(log))
    for _ in range(8):  # more often than there are threads
        desk.commit.request(broken)
        desk.commit.wait(broken)
    assert broken.failure is not None
    assert "met a bug" in broken.failure.message
    desk.until(lambda: broken in desk.heard)
    desk.commit.request(sound)
    desk.until(lambda: sound in desk.heard)
    assert sound.durable_offset == sound.end_offset
    desk.commit.close()
