"""Logs that a crash left torn, or that begin anew: a copy must never claim to have what it has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import DamagedRecords, DiskFull
from penstock.records import Record, encode_batch, parse_header
from penstock.storage.aborted import AbortedTransaction
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

DIRECTORY = Path("/logs/t/0")


def open_log(files: MemoryFiles) -> Log:
    return Log.open(files, DIRECTORY, LogConfig())


def write(log: Log, count: int, epoch: int = 0) -> None:
    for _ in range(count):
        batch = memoryview(encode_batch([Record(0, 1, b"k", b"v" * 50)]))
        log.append(batch, parse_header(batch), epoch)


def test_an_empty_segment_behind_a_torn_one_does_not_say_where_the_log_ends() -> None:
    files = MemoryFiles()
    log = open_log(files)
    write(log, 3)
    log.sync()
    kept = log.size_bytes
    write(log, 2)
    log.roll()
    files.open(DIRECTORY / f"{0:020}.log").truncate(kept + 10)  # the rest never reached the disk
    again = open_log(files)
    assert (again.end_offset, again.durable_offset) == (3, 3)
    write(again, 1)
    again.close()
    assert open_log(files).end_offset == 4


def test_damage_in_the_middle_is_told_and_not_stepped_over_by_whoever_copies() -> None:
    files = MemoryFiles()
    log = open_log(files)
    write(log, 6)
    log.roll()
    log.sync()
    one = log.size_bytes // 6
    files.flip_bit(DIRECTORY / f"{0:020}.log", 2 * one + 70)
    assert log.read(0, 1 << 20, 6) is not None
    assert log.first_damage() == 2
    found = log.read(0, 1 << 20, 6)
    assert found is not None
    assert found.next_offset in {-1, 2}
    assert found.size == 2 * one
    with pytest.raises(DamagedRecords):
        log.read(2, 1 << 20, 6)
    assert log.read(3, 1 << 20, 6) is not None


def test_a_log_that_begins_anew_has_nothing_old_and_knows_where_it_is() -> None:
    files = MemoryFiles()
    log = open_log(files)
    write(log, 5, epoch=2)
    log.roll()
    write(log, 5, epoch=3)
    log.aborted.add(AbortedTransaction(producer_id=1, first_offset=2, last_offset=6, last_stable_offset=2))
    log.close()
    log.begin_at(40)
    for each in (log, open_log(files)):
        assert (each.start_offset, each.end_offset, each.durable_offset) == (40, 40, 40)
        assert each.epochs.latest == -1
        assert each.aborted.items() == []
        assert list(each.batches(40)) == []
    write(log, 1, epoch=4)
    assert log.epochs.items() == [(4, 40)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_log_that_begins_anew_survives_a_crash_at_every_step(seed: int, *, is_closed: bool) -> None:
    def prepare() -> tuple[MemoryFiles, Log]:
        files = MemoryFiles(seed=seed)
        log = open_log(files)
        write(log, 5, epoch=2)
        log.roll()
        write(log, 5, epoch=3)
        log.sync()
        if is_closed:
            log.close()
            log = open_log(files)
        return files, log

    files, log = prepare()
    before = files.steps
    log.begin_at(40)
    for step in range(before + 1, files.steps + 1):
        crashing, torn = prepare()
        crashing.crash_at = step
        with pytest.raises(BaseException):  # noqa: B017 - a crash is no Exception
            torn.begin_at(40)
        crashing.crash()
        found = open_log(crashing)
        assert (found.start_offset, found.end_offset) in {(0, 10), (40, 40)}


def test_a_log_that_cannot_begin_anew_on_a_full_disk_is_read_anew_there_and_begins_later() -> None:
    found = set()
    for room in range(60):
        files = MemoryFiles()
        log = open_log(files)
        write(log, 5, epoch=2)
        log.roll()
        write(log, 5, epoch=3)
        log.sync()
        files.capacity_bytes = files.used_bytes + room
        try:
            log.begin_at(40)
        except DiskFull:
            log.read_anew()
        found.add((log.start_offset, log.end_offset, len(list(log.batches(log.start_offset)))))
        files.capacity_bytes = None
        log.begin_at(40)
        write(log, 1, epoch=4)
        log.sync()
        for each in (log, open_log(files)):
            assert (each.start_offset, each.end_offset, each.epochs.items()) == (40, 41, [(4, 40)])
    assert found == {(0, 10, 10), (40, 40, 0)}


def test_a_reader_from_within_damage_is_refused_too() -> None:
    """A follower may have some of the batches that are damaged here, and must not go on behind the rest."""
    files = MemoryFiles()
    log = open_log(files)
    write(log, 6)
    log.roll()
    log.sync()
    one = log.size_bytes // 6
    first = DIRECTORY / f"{0:020}.log"
    files.flip_bit(first, 2 * one + 70)
    files.flip_bit(first, 3 * one + 70)
    for offset in (2, 3):
        with pytest.raises(DamagedRecords):
            log.read(offset, 1 << 20, 6)
    for offset in (4, 5):
        assert log.read(offset, 1 << 20, 6) is not None


def test_a_torn_log_is_doubtful_until_somebody_was_told() -> None:
    files = MemoryFiles()
    log = open_log(files)
    write(log, 3)
    assert not open_log(files).is_doubtful
    first = DIRECTORY / f"{0:020}.log"
    files.open(first).truncate(log.size_bytes - 10)
    assert open_log(files).is_doubtful
    again = open_log(files)
    assert (again.is_doubtful, again.end_offset, again.bytes_cut) == (True, 2, 0)
    again.forget_doubt()
    assert not open_log(files).is_doubtful


def test_a_log_that_is_shorter_than_when_it_was_closed_is_doubtful() -> None:
    files = MemoryFiles()
    log = open_log(files)
    write(log, 4)
    log.close()
    assert not open_log(files).is_doubtful
    first = DIRECTORY / f"{0:020}.log"
    files.open(first).truncate(log.size_bytes // 2)  # where a batch ends, so nothing is torn
    again = open_log(files)
    assert (again.is_doubtful, again.end_offset, again.bytes_cut) == (True, 2, 0)


def test_a_sealed_segment_that_was_cut_is_damaged_from_there_on() -> None:
    files = MemoryFiles()
    log = open_log(files)
    for _ in range(3):
        write(log, 4)
        log.roll()
    log.close()
    first = DIRECTORY / f"{0:020}.log"
    files.open(first).truncate(files.size(first) // 2)
    again = open_log(files)
    again.segments[0].verify()
    assert again.first_damage() == 2
    with pytest.raises(DamagedRecords):
        again.read(2, 1 << 20, 12)
    assert again.read(4, 1 << 20, 12) is not None
