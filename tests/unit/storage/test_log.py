"""What a log does when nothing goes wrong."""

from __future__ import annotations

import pytest
from tests.unit.storage.samples import append, base_of, fill, make_batch, open_log, producers_of, read_all, table_facts

from penstock.errors import OffsetOutOfRange
from penstock.records import Codec, parse_header
from penstock.storage.config import LogConfig
from penstock.testing.files import MemoryFiles


def test_what_is_appended_is_read_back_byte_for_byte() -> None:
    log = open_log(MemoryFiles())
    stored = fill(log, 100)
    assert len(log.segments) > 3
    for max_bytes in (1, 100, 333, 1 << 20):
        assert read_all(log, max_bytes) == stored


def test_append_gives_consecutive_offsets_and_the_leader_epoch() -> None:
    log = open_log(MemoryFiles())
    assert [append(log, make_batch(count), leader_epoch=7) for count in (1, 5, 2)] == [0, 1, 6]
    assert log.end_offset == 8
    assert [parse_header(batch).leader_epoch for batch in read_all(log)] == [7, 7, 7]
    assert log.epochs.items() == [(7, 0)]


def test_a_read_starts_with_the_batch_that_holds_the_offset() -> None:
    log = open_log(MemoryFiles())
    for _ in range(30):
        append(log, make_batch(10))
    for offset in range(300):
        found = log.read(offset, 1, log.end_offset)
        assert found is not None
        assert parse_header(found.read()).base_offset == offset - offset % 10


def test_a_read_stops_before_the_limit() -> None:
    log = open_log(MemoryFiles())
    stored = fill(log, 60)
    for limit in range(61):
        found = log.read(0, 1 << 20, limit)
        first_segment = min(limit, log.segments[1].base_offset)
        assert (found.read() if found else b"") == b"".join(stored[:first_segment])
        assert log.read(limit, 1 << 20, limit) is None


def test_a_read_returns_one_batch_even_if_it_is_larger_than_asked() -> None:
    log = open_log(MemoryFiles(), LogConfig(segment_bytes=1 << 20))
    append(log, make_batch(value=bytes(50_000)))
    append(log, make_batch())
    found = log.read(0, 1, log.end_offset)
    assert found is not None
    assert base_of(found.read()) == 0
    assert found.size == parse_header(found.read()).size


def test_reading_outside_the_log_names_its_range() -> None:
    log = open_log(MemoryFiles())
    fill(log, 3)
    assert log.read(3, 100, 3) is None
    with pytest.raises(OffsetOutOfRange, match="orders-0, which holds 0 to 3"):
        log.read(4, 100, 4)
    log.trim(2)
    with pytest.raises(OffsetOutOfRange):
        log.read(1, 100, 3)


def test_a_clean_restart_scans_nothing_and_finds_everything() -> None:
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, 50, producer_id=9)
    log.close()
    steps = files.steps
    again = open_log(files)
    assert files.steps == steps, "a clean start writes nothing"
    assert (again.end_offset, again.durable_offset) == (50, 50)
    assert read_all(again) == stored
    assert table_facts(again.producers) == producers_of(stored)
    assert again.epochs.items() == log.epochs.items()


def test_closing_many_times_without_writing_keeps_the_producers() -> None:
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, 5, producer_id=9)
    for _ in range(5):
        log.close()
        log = open_log(files)
    assert table_facts(log.producers) == producers_of(stored)


def test_the_first_record_at_or_after_a_time_is_found() -> None:
    log = open_log(MemoryFiles())
    times = [1000, 1010, 1005, 1030, 1020, 1050, 1040] * 4
    for time in times:
        append(log, make_batch(timestamp=time, codec=Codec.GZIP))
    for wanted in range(990, 1060):
        expected = next((at for at, time in enumerate(times) if time >= wanted), None)
        found = log.find_time(wanted)
        assert (found and found.offset) == expected
    log.trim(6)
    found = log.find_time(1050)
    assert found is not None
    assert (found.offset, found.timestamp) == (12, 1050)


def test_time_is_searched_inside_batches() -> None:
    log = open_log(MemoryFiles())
    append(log, make_batch(100, timestamp=5_000, codec=Codec.ZSTD))
    found = log.find_time(5_042)
    assert found == (42, 5_042, 0)
    log.trim(50)
    assert log.find_time(5_042) == (50, 5_050, 0)


def test_the_largest_timestamp_is_found_in_what_is_left() -> None:
    log = open_log(MemoryFiles())
    assert log.find_time(log.largest_timestamp) is None
    for time in (1000, 3000, 2000, 1500):
        append(log, make_batch(timestamp=time))
    assert log.find_time(log.largest_timestamp) == (1, 3000, 0)
    log.trim(2)
    assert log.find_time(log.largest_timestamp) == (2, 2000, 0)


def test_trim_moves_the_start_for_good_and_drops_whole_segments() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 50)
    log.sync()
    before = len(log.segments)
    dropped = log.trim(30)
    log.delete_files(dropped)
    assert len(log.segments) == before - len(dropped)
    assert log.segments[0].base_offset <= 30 < log.segments[1].base_offset
    assert (log.start_offset, log.end_offset) == (30, 50)
    log.close()
    assert open_log(files).start_offset == 30


def test_trim_to_the_end_leaves_an_empty_log_that_goes_on() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 20)
    log.delete_files(log.trim(20))
    assert (log.start_offset, log.end_offset, log.size_bytes) == (20, 20, 0)
    assert append(log, make_batch()) == 20
    log.close()
    assert [base_of(batch) for batch in read_all(open_log(files))] == [20]


def test_retention_by_time_drops_old_segments_and_seals_a_quiet_one() -> None:
    log = open_log(MemoryFiles(), LogConfig(segment_bytes=1500, retention_ms=10_000))
    fill(log, 50)
    assert log.expire(now_ms=11_000) == []
    dropped = log.expire(now_ms=11_030)
    assert dropped
    assert log.start_offset == log.segments[0].base_offset
    assert log.segments[0].max_timestamp >= 1_030
    assert log.expire(now_ms=12_000)
    assert (log.start_offset, log.end_offset) == (50, 50)


def test_records_without_a_timestamp_expire_by_the_age_of_their_file() -> None:
    files = MemoryFiles()
    files.now_ms = 50_000
    log = open_log(files, LogConfig(segment_bytes=1500, retention_ms=10_000))
    append(log, make_batch(timestamp=-1))
    assert log.expire(now_ms=55_000) == []
    assert log.expire(now_ms=61_000)


def test_retention_by_size_drops_the_oldest_segments() -> None:
    log = open_log(MemoryFiles(), LogConfig(segment_bytes=1500, retention_ms=-1, retention_bytes=4000))
    fill(log, 100)
    log.expire(now_ms=0)
    assert 4000 <= log.size_bytes < 5500


def test_an_old_active_segment_is_sealed() -> None:
    log = open_log(MemoryFiles(), LogConfig(segment_ms=1000, retention_ms=-1))
    fill(log, 1)
    log.expire(now_ms=5_000)
    log.expire(now_ms=5_999)
    assert len(log.segments) == 1
    log.expire(now_ms=6_000)
    assert len(log.segments) == 2


@pytest.mark.parametrize("offset", [0, 1, 7, 20, 33, 49, 50])
def test_truncate_cuts_everything_from_the_offset_on(offset: int) -> None:
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, 50, producer_id=3)
    log.sync()
    log.truncate(offset)
    assert log.end_offset == offset
    assert read_all(log) == stored[:offset]
    assert table_facts(log.producers) == producers_of(stored[:offset])
    assert append(log, make_batch()) == offset
    log.close()
    assert len(read_all(open_log(files))) == offset + 1


def test_truncating_before_the_start_moves_the_start_back() -> None:
    log = open_log(MemoryFiles())
    fill(log, 50)
    log.delete_files(log.trim(40))
    log.truncate(10)
    assert (log.start_offset, log.end_offset) == (10, 10)
    assert append(log, make_batch()) == 10


def test_truncate_forgets_the_epochs_behind_it() -> None:
    files = MemoryFiles()
    log = open_log(files)
    for epoch in (1, 1, 3, 3, 5, 5):
        append(log, make_batch(), leader_epoch=epoch)
    log.close()
    log = open_log(files)
    log.truncate(3)
    append(log, make_batch(), leader_epoch=4)
    assert log.epochs.items() == [(1, 0), (3, 2), (4, 3)]
    files.crash(keeps_unsynced=True)
    assert open_log(files).epochs.items() == [(1, 0), (3, 2), (4, 3)]


def test_a_follower_stores_gaps_and_reads_step_over_them() -> None:
    files = MemoryFiles()
    leader = open_log(MemoryFiles())
    stored = fill(leader, 30)
    follower = open_log(files)
    kept = [batch for batch in stored if base_of(batch) % 3 == 0]
    for batch in kept:
        follower.append_stored(memoryview(batch), parse_header(batch))
    assert read_all(follower) == kept
    found = follower.read(4, 1, follower.end_offset)
    assert found is not None
    assert base_of(found.read()) == 6
    follower.close()
    assert read_all(open_log(files)) == kept


def test_batches_lists_every_batch_from_an_offset_on() -> None:
    log = open_log(MemoryFiles())
    stored = fill(log, 40)
    assert [part.read() for part in log.batches(13)] == stored[13:]
    assert [part.read() for part in log.batches(0)] == stored


def test_only_some_sealed_segments_are_held_open() -> None:
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, 600)
    log.close()
    log = open_log(files)
    assert read_all(log) == stored
    assert len(log.segments) > 30
    assert sum(segment._file is not None for segment in log.segments) <= 17
