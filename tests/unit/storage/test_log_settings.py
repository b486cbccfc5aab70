"""Settings of a log that decide when its files begin, are closed and go."""

from __future__ import annotations

import os
from pathlib import Path

from tests.unit.storage.samples import COMPACTED, DIRECTORY, append, fill, make_batch, open_log, read_all

from penstock.records import Record, encode_batch
from penstock.storage.compaction import plan_compaction
from penstock.storage.config import LogConfig
from penstock.storage.files import DiskFiles
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

LARGE = 1 << 20


def test_every_batch_has_a_row_where_the_index_interval_is_0() -> None:
    log = open_log(MemoryFiles(), LogConfig(segment_bytes=LARGE, index_interval_bytes=0))
    fill(log, 20)
    assert len(log.segments[0].index.rows()) == 20
    assert len(read_all(log, 1)) == 20


def test_a_segment_whose_index_is_full_is_closed() -> None:
    log = open_log(MemoryFiles(), LogConfig(segment_bytes=LARGE, index_interval_bytes=0, segment_index_bytes=10 * 16))
    stored = fill(log, 35)
    assert [segment.base_offset for segment in log.segments] == [0, 10, 20, 30]
    assert read_all(log) == stored


def test_segments_with_jitter_are_closed_at_different_ages_and_none_too_late() -> None:
    ages = set()
    for number in range(8):
        config = LogConfig(segment_bytes=LARGE, segment_ms=1_000, segment_jitter_ms=900)
        log = Log.open(MemoryFiles(), DIRECTORY / f"{number}", config)
        append(log, make_batch())
        log.roll_aged(0)
        age = next(now for now in range(0, 1_001, 10) if _is_rolled(log, now))
        assert 100 <= age <= 1_000
        ages.add(age)
    assert len(ages) > 1


def _is_rolled(log: Log, now_ms: int) -> bool:
    log.roll_aged(now_ms)
    return len(log.segments) > 1


def test_a_file_stays_for_its_delay_and_is_no_part_of_the_log() -> None:
    files = MemoryFiles()
    config = LogConfig(segment_bytes=1500, file_delete_delay_ms=60_000)
    log = open_log(files, config)
    fill(log, 50)
    log.sync()
    dropped = log.trim(30)
    assert dropped
    log.delete_files(dropped, now_ms=1_000)
    waiting = [entry.name for entry in files.entries(DIRECTORY) if entry.name.endswith(".deleted")]
    assert len(waiting) == len(dropped)
    assert not log.has_condemned(60_999)
    log.remove_condemned(60_999)
    assert len([entry for entry in files.entries(DIRECTORY) if entry.name.endswith(".deleted")]) == len(dropped)
    log.remove_condemned(61_000)
    assert not [entry for entry in files.entries(DIRECTORY) if entry.name.endswith(".deleted")]


def test_a_file_that_waits_to_be_removed_is_removed_by_the_next_start() -> None:
    files = MemoryFiles()
    config = LogConfig(segment_bytes=1500, file_delete_delay_ms=60_000)
    log = open_log(files, config)
    fill(log, 50)
    log.sync()
    log.delete_files(log.trim(30), now_ms=0)
    log.close()
    again = open_log(files, config)
    assert (again.start_offset, again.end_offset) == (30, 50)
    assert not [entry for entry in files.entries(DIRECTORY) if entry.name.endswith(".deleted")]


def test_a_preallocated_file_has_its_room_and_gives_back_what_it_did_not_need(tmp_path: Path) -> None:
    log = Log.open(DiskFiles(), tmp_path / "log", LogConfig(segment_bytes=4 * LARGE, preallocate=True))
    stored = fill(log, 3)
    path = tmp_path / "log" / f"{0:020}.log"
    reserved = os.stat(path).st_blocks * 512
    assert os.stat(path).st_size == sum(map(len, stored)), "the file is no longer for it"
    log.roll()
    left = os.stat(path).st_blocks * 512
    assert left < LARGE
    assert reserved >= 4 * LARGE or reserved == left, "a file system that cannot reserve room reserves none"
    assert read_all(log) == stored


def test_what_is_older_than_the_longest_lag_is_compacted_although_little_is_dirty() -> None:
    config = LogConfig(segment_bytes=LARGE, is_compacting=True, min_dirty_ratio=1.0, max_compaction_lag_ms=5_000)
    log = open_log(MemoryFiles(), config)
    for round_number in range(2):
        records = [Record(at, 1_000, b"k%d" % at, b"%d" % round_number) for at in range(10)]
        append(log, memoryview(encode_batch(records)))
        log.roll()
        log.sync()
        if round_number == 0:
            first = plan_compaction(log, 1_500)
            assert first is not None
            first.run()
            first.apply()
            first.finish()
    assert plan_compaction(log, 5_900) is None
    assert plan_compaction(log, 6_001) is not None


def test_a_compacted_log_closes_its_segment_before_the_longest_lag_is_over() -> None:
    log = open_log(MemoryFiles(), LogConfig(segment_bytes=LARGE, is_compacting=True, max_compaction_lag_ms=5_000))
    append(log, make_batch())
    log.roll_aged(0)
    assert not _is_rolled(log, 4_999)
    assert _is_rolled(log, 5_000)
    assert COMPACTED.max_compaction_lag_ms > 5_000
