"""One refused call of the disk, wherever it comes, loses no record: the next try goes on from there, as does a restart.

Each workload is run once for every call that it makes of the file system, with that call refused.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.unit.storage.samples import COMPACTED as SAMPLE
from tests.unit.storage.samples import DIRECTORY, append, open_log, read_all

from penstock.errors import LogFailed, StorageError
from penstock.records import Record, decode_records, encode_batch
from penstock.storage.compaction import compact
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

KEYS = 12
COMPACTED = replace(SAMPLE, segment_bytes=500)
ERRORS = (errno.EMFILE, errno.EIO, errno.ENOSPC)


def write(log: Log, key: str, value: str) -> None:
    append(log, memoryview(encode_batch([Record(0, 1_000, key.encode(), value.encode())])))


def values(log: Log) -> dict[bytes | None, bytes | None]:
    """The last value of each key, as readers see it."""
    records = [record for batch in read_all(log, 300) for record in decode_records(memoryview(batch))]
    return {record.key: record.value for record in records}


def filled() -> tuple[MemoryFiles, Log]:
    """A few keys in several sealed segments, and one that is written often."""
    files = MemoryFiles()
    log = open_log(files, COMPACTED)
    for number in range(KEYS):
        write(log, f"key {number}", f"value {number}")
        write(log, "often", str(number))
    log.roll()
    log.sync()
    assert len(log.segments) > 4
    return files, log


def failing_runs(work: Callable[[Log], object]) -> Iterator[tuple[MemoryFiles, Log, str]]:
    """The log after ``work`` was refused one call, for each call it makes and each error there may be."""
    for number in ERRORS:
        for call in range(1, 10_000):
            files, log = filled()
            files.fail_with, files.fail_at = number, files.calls + call
            with suppress(StorageError):
                work(log)
            if files.calls < files.fail_at:
                break
            files.fail_at = None
            yield files, log, f"{errno.errorcode[number]} at call {call}: {files.last_call}"
        else:
            pytest.fail("the workload makes too many calls")


def reopened(files: MemoryFiles) -> Log:
    """The log as the next process finds it after a power cut."""
    files.crash()
    return open_log(files, COMPACTED)


def test_a_failed_pass_of_compaction_loses_no_key_and_the_next_one_works() -> None:
    runs = 0
    for files, log, what in failing_runs(lambda log: compact(log, now_ms=0)):
        runs += 1
        wanted = values(log)
        assert len(wanted) == KEYS + 1, what
        compact(log, now_ms=1_000)
        assert values(log) == wanted, what
        write(log, "often", "again")
        write(log, "new", "new")
        log.roll()
        log.sync()
        wanted |= {b"often": b"again", b"new": b"new"}
        compact(log, now_ms=2_000)
        assert values(log) == wanted, what
        assert values(reopened(files)) == wanted, what
    assert runs > 3 * 20


def test_a_restart_after_a_failed_pass_finds_every_key() -> None:
    for files, log, what in failing_runs(lambda log: compact(log, now_ms=0)):
        wanted = values(log)
        assert len(wanted) == KEYS + 1, what
        again = reopened(files)
        assert values(again) == wanted, what
        compact(again, now_ms=1_000)
        assert values(again) == wanted, what
        left = [entry.name for entry in files.entries(DIRECTORY) if entry.name.endswith((".cleaned", ".swap", ".tmp"))]
        assert not left, what


def test_a_log_can_be_truncated_after_a_failed_pass() -> None:
    for files, log, what in failing_runs(lambda log: compact(log, now_ms=0)):
        log.truncate(15)
        assert log.end_offset <= 15, what
        kept = values(log)
        assert kept.keys() - {b"often"} == {b"key %d" % number for number in range((log.end_offset + 1) // 2)}, what
        for number in range(KEYS):
            write(log, f"later {number}", "x")
        log.sync()
        wanted = kept | {b"later %d" % number: b"x" for number in range(KEYS)}
        assert values(log) == wanted, what
        assert values(reopened(files)) == wanted, what


def test_segments_are_dropped_after_a_failed_pass_and_do_not_come_back() -> None:
    for files, log, what in failing_runs(lambda log: compact(log, now_ms=0)):
        log.settle_swaps()
        log.delete_files(log.trim(20))
        wanted = values(log)
        assert b"key 9" not in wanted, what
        assert values(reopened(files)) == wanted, what


def test_a_failed_deletion_leaves_no_gap_for_a_restart_to_find() -> None:
    for files, log, what in failing_runs(lambda log: log.delete_files(log.trim(12))):
        wanted = values(log)
        with suppress(LogFailed):
            log.delete_files(log.trim(20))
        again = reopened(files)
        bases = [segment.base_offset for segment in again.segments]
        ends = [segment.next_offset for segment in again.segments]
        assert bases[1:] == ends[:-1], what
        assert values(again).items() <= wanted.items(), what


def append_more(log: Log) -> None:
    for number in range(20):
        write(log, f"more {number}", "x")
        if number % 5 == 4:
            log.sync()
    log.roll()
    log.sync()


def test_a_write_that_was_refused_is_not_there_and_the_others_are() -> None:
    """Rolling, syncing, snapshots of producers, indexes."""
    for files, log, what in failing_runs(append_more):
        wanted = values(log)
        durable = log.durable_offset
        with suppress(LogFailed):
            write(log, "new", "new")
            log.sync()
            wanted |= {b"new": b"new"}
            durable = log.end_offset
        assert values(log) == wanted, what
        again = reopened(files)
        assert again.end_offset >= durable, what
        assert not again.corrupt_bytes, what
        if log.failure is None:
            assert values(again) == wanted, what


@pytest.mark.parametrize("change", [lambda log: log.truncate(16), lambda log: log.begin_at(500)])
def test_a_log_that_could_not_be_cut_is_whole_after_a_restart(change: Callable[[Log], None]) -> None:
    for files, log, what in failing_runs(change):
        before = values(filled()[1])
        again = reopened(files)
        assert values(again).items() <= before.items() | {(b"often", b"%d" % number) for number in range(KEYS)}, what
        change(again)
        del log
        assert again.end_offset in {16, 500}, what
        write(again, "new", "new")
        again.sync()
        wanted = values(again)
        assert values(reopened(files)) == wanted, what
