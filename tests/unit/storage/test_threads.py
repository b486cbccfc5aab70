"""One thread writes and reads while another syncs and a third compacts, as in a running node."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.unit.storage.samples import COMPACTED, append, fill, open_log, read_all

from penstock.records import Record, decode_records, encode_batch
from penstock.storage.compaction import Compaction, compact, plan_compaction
from penstock.storage.files import DiskFiles
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

KEYS = 20


class InterruptedFiles(MemoryFiles):
    """Lets something else happen right after the next sync of a file, as another thread would."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupt: Callable[[], None] | None = None

    def step(self, name: str, do_part: Callable[[], object]) -> None:
        super().step(name, do_part)
        if name.startswith("sync directory") and self.interrupt is not None:
            interrupt, self.interrupt = self.interrupt, None
            interrupt()


def test_a_segment_sealed_while_a_sync_runs_is_synced_again() -> None:
    files = InterruptedFiles()
    log = open_log(files)
    fill(log, 3)
    log.roll()
    stored = fill(log, 3)

    def write_and_roll() -> None:
        stored.extend(fill(log, 3))
        log.roll()

    files.interrupt = write_and_roll
    assert log.sync() == 6
    assert files.interrupt is None
    assert log.sync() == 9
    files.crash()
    assert read_all(open_log(files))[3:] == stored


def test_files_of_segments_that_left_the_log_are_closed(tmp_path: Path) -> None:
    config = replace(COMPACTED, segment_bytes=1_000)
    log = Log.open(DiskFiles(), tmp_path / "orders" / "0", config)
    for number in range(200):
        write(log, number)
    log.roll()
    log.sync()
    read_all(log)
    compact(log, now_ms=0)
    read_all(log)
    for number in range(200):
        write(log, number)
    log.roll()
    log.sync()
    log.delete_files(log.trim(300))
    gc.collect()
    open_files = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert not [name for name in open_files if str(tmp_path) in name and name.endswith("(deleted)")]


class SyncingThread(threading.Thread):
    def __init__(self, log: Log) -> None:
        super().__init__(daemon=True)
        self._log = log
        self._has_work = threading.Event()
        self._is_over = False
        self.failure: BaseException | None = None

    def request(self) -> None:
        self._has_work.set()

    def stop(self) -> None:
        self._is_over = True
        self._has_work.set()
        self.join()
        assert self.failure is None, self.failure

    def run(self) -> None:
        try:
            while not self._is_over:
                self._has_work.wait()
                self._has_work.clear()
                self._log.sync()
        except BaseException as failure:
            self.failure = failure


def test_syncing_and_compacting_beside_the_owner_changes_nothing_it_sees(tmp_path: Path) -> None:
    config = replace(COMPACTED, segment_bytes=4_000)
    log = Log.open(DiskFiles(), tmp_path / "orders" / "0", config)
    syncing = SyncingThread(log)
    syncing.start()
    running: tuple[Compaction, threading.Thread] | None = None
    passes = 0
    for number in range(2_000):
        write(log, number)
        if number % 10 == 0:
            syncing.request()
            check(log, number)
        if running is None and number % 50 == 0:
            compaction = plan_compaction(log, now_ms=number)
            if compaction is not None:
                running = (compaction, threading.Thread(target=compaction.run))
                running[1].start()
        elif running is not None and not running[1].is_alive():
            compaction = running[0]
            if compaction.rewritten and passes % 2 == 0:
                check(log, number)
            compaction.apply()
            check(log, number)
            finishing = threading.Thread(target=compaction.finish)
            finishing.start()
            check(log, number)
            finishing.join()
            check(log, number)
            passes += 1
            running = None
    if running is not None:
        running[1].join()
        running[0].abandon()
    syncing.stop()
    assert passes > 3
    log.close()
    again = Log.open(DiskFiles(), tmp_path / "orders" / "0", config)
    check(again, 1_999)
    assert read_all(again) == read_all(log)


def write(log: Log, number: int) -> None:
    record = Record(0, 1_000, b"key %d" % (number % KEYS), b"value %d" % number)
    append(log, memoryview(encode_batch([record])))


def check(log: Log, newest: int) -> None:
    """Each key's last value is what was written last."""
    table = {record.key: record.value for batch in read_all(log) for record in decode_records(batch)}
    for number in range(max(0, newest - KEYS + 1), newest + 1):
        assert table[b"key %d" % (number % KEYS)] == b"value %d" % number
