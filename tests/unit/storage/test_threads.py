"""One thread writes and reads while another syncs and a third compacts, as in a running node."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.unit.storage.samples import COMPACTED, append, fill, open_log, read_all

from penstock.records import Record, decode_records, encode_batch
from penstock.storage.compaction import compact, plan_compaction
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


class Failing(threading.Thread):
    """A thread that raises its failure where it is joined."""

    def __init__(self, do: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._do = do
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._do()
        except BaseException as failure:
            self._failure = failure

    def join_sound(self) -> None:
        self.join()
        if self._failure is not None:
            raise self._failure


class SyncingThread(Failing):
    def __init__(self, log: Log) -> None:
        super().__init__(self._sync)
        self._log = log
        self._has_work = threading.Event()
        self._is_synced = threading.Event()
        self._is_over = False

    def request(self) -> None:
        self._has_work.set()

    def catch_up(self) -> None:
        """Return when all that is written is synced."""
        end = self._log.end_offset
        while self.is_alive() and self._log.durable_offset < end:
            self.request()
            self._is_synced.wait(0.1)
            self._is_synced.clear()

    def stop(self) -> None:
        self._is_over = True
        self._has_work.set()
        self.join_sound()

    def _sync(self) -> None:
        while not self._is_over:
            self._has_work.wait()
            self._has_work.clear()
            self._log.sync()
            self._is_synced.set()


def test_syncing_and_compacting_beside_the_owner_changes_nothing_it_sees(tmp_path: Path) -> None:
    config = replace(COMPACTED, segment_bytes=4_000)
    log = Log.open(DiskFiles(), tmp_path / "orders" / "0", config)
    syncing = SyncingThread(log)
    syncing.start()
    number = -1

    def work(writes: int) -> None:
        """Write as the owner does, and look at what there is."""
        nonlocal number
        for _ in range(writes):
            number += 1
            write(log, number)
            if number % 10 == 0:
                syncing.request()
                check(log, number)

    def beside(do: Callable[[], object]) -> None:
        """Work while a thread does something, and wait for it then, however late its turn comes."""
        thread = Failing(do)
        thread.start()
        work(50)
        thread.join_sound()
        check(log, number)

    for passes in range(6):
        work(150)
        syncing.catch_up()  # only what is synced is compacted
        compaction = plan_compaction(log, now_ms=number)
        assert compaction is not None
        beside(compaction.run)
        assert compaction.rewritten, "there was something to compact"
        compaction.apply()
        check(log, number)
        beside(
            log.settle_swaps if passes == 3 else compaction.finish
        )  # as after an error: how far it came is not noted
    syncing.stop()
    log.close()
    again = Log.open(DiskFiles(), tmp_path / "orders" / "0", config)
    check(again, number)
    assert read_all(again) == read_all(log)


def write(log: Log, number: int) -> None:
    record = Record(0, 1_000, b"key %d" % (number % KEYS), b"value %d" % number)
    append(log, memoryview(encode_batch([record])))


def check(log: Log, newest: int) -> None:
    """Each key's last value is what was written last."""
    table = {record.key: record.value for batch in read_all(log) for record in decode_records(batch)}
    for number in range(max(0, newest - KEYS + 1), newest + 1):
        assert table[b"key %d" % (number % KEYS)] == b"value %d" % number
