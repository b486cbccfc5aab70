"""Compaction keeps the last value of each key, at its offset."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.unit.storage.samples import (
    COMPACTED,
    DIRECTORY,
    append,
    make_batch,
    open_log,
    producers_of,
    read_all,
    table_facts,
)

from penstock.errors import DiskFull
from penstock.records import Codec, Record, decode_records, encode_batch, encode_marker, parse_header
from penstock.storage.compaction import CleanedTo, compact, plan_compaction
from penstock.storage.log import Log
from penstock.storage.segment import log_path
from penstock.testing.files import MemoryFiles


def write(log: Log, *pairs: tuple[str, str | None], codec: Codec = Codec.NONE) -> None:
    records = [
        Record(number, 1_000, key.encode(), None if value is None else value.encode())
        for number, (key, value) in enumerate(pairs)
    ]
    append(log, memoryview(encode_batch(records, codec=codec)))


def records_of(log: Log) -> list[Record]:
    """What readers see: markers are not for them."""
    batches = [batch for batch in read_all(log, 300) if not parse_header(batch).is_control]
    return [record for batch in batches for record in decode_records(batch)]


def seal(log: Log) -> None:
    log.roll()
    log.sync()


def test_the_last_value_of_each_key_stays_at_its_offset() -> None:
    files = MemoryFiles()
    log = open_log(files, COMPACTED)
    rng = random.Random(1)
    for _ in range(200):
        pairs = [(f"key {rng.randint(0, 20)}", f"value {rng.random()}") for _ in range(rng.randint(1, 5))]
        write(log, *pairs, codec=rng.choice(list(Codec)))
    seal(log)
    before = {record.offset: record for record in records_of(log)}
    last = {record.key: record.offset for record in before.values()}
    assert compact(log, now_ms=0)
    assert records_of(log) == [before[offset] for offset in sorted(last.values())]
    assert log.end_offset == len(before)
    log.close()
    again = open_log(files, COMPACTED)
    assert records_of(again) == records_of(log)
    assert again.end_offset == log.end_offset


def test_small_segments_are_put_together() -> None:
    log = open_log(MemoryFiles(), COMPACTED)
    for number in range(100):
        write(log, ("same", str(number)), (f"other {number % 3}", "x"))
    seal(log)
    assert len(log.segments) > 5
    compact(log, now_ms=0)
    write(log, ("same", "new"))
    seal(log)
    compact(log, now_ms=1)
    assert len(log.segments) == 2


def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    files = MemoryFiles()
    log = open_log(files, COMPACTED)
    write(log, ("a", "1"), ("b", "1"))
    write(log, ("a", None))
    seal(log)
    assert compact(log, now_ms=10_000)
    assert [(record.key, record.value) for record in records_of(log)] == [(b"b", b"1"), (b"a", None)]
    assert not compact(log, now_ms=10_999)
    log.close()
    log = open_log(files, COMPACTED)
    assert compact(log, now_ms=11_000)
    assert [(record.key, record.value) for record in records_of(log)] == [(b"b", b"1")]
    assert not compact(log, now_ms=99_000)


def test_a_tombstone_that_was_superseded_goes_at_once() -> None:
    log = open_log(MemoryFiles(), COMPACTED)
    write(log, ("a", None))
    write(log, ("a", "2"))
    seal(log)
    compact(log, now_ms=0)
    assert [record.value for record in records_of(log)] == [b"2"]


def test_records_without_a_key_stay() -> None:
    log = open_log(MemoryFiles(), COMPACTED)
    for _ in range(3):
        append(log, make_batch(2, key=None))
    seal(log)
    compact(log, now_ms=0)
    assert len(records_of(log)) == 6


def test_control_batches_of_an_unknown_kind_stay() -> None:
    log = open_log(MemoryFiles(), COMPACTED)
    marker = encode_batch([Record(0, 1_000, b"\0\0\0\1", b"\0\0")], producer_id=1, producer_epoch=0, is_control=True)
    for _ in range(3):
        append(log, memoryview(bytearray(marker)))
    seal(log)
    compact(log, now_ms=0)
    assert len(read_all(log)) == 3


def test_records_of_aborted_transactions_are_no_values() -> None:
    log = open_log(MemoryFiles(), COMPACTED)
    write(log, ("a", "1"))
    aborted = encode_batch(
        [Record(0, 1_000, b"a", b"2")], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    append(log, memoryview(aborted))
    append(log, memoryview(encode_marker(7, 0, is_commit=False, coordinator_epoch=0, timestamp_ms=1_000)))
    seal(log)
    assert compact(log, now_ms=0)
    assert [record.value for record in records_of(log)] == [b"1"]


def test_producers_are_remembered_by_empty_batches() -> None:
    files = MemoryFiles()
    log = open_log(files, COMPACTED)
    for sequence in range(40):
        append(log, make_batch(producer_id=sequence % 3, sequence=sequence))
    seal(log)
    table = table_facts(log.producers)
    compact(log, now_ms=0)
    assert len(records_of(log)) == 1
    assert producers_of(read_all(log)) == table
    log.close()
    for entry in files.entries(DIRECTORY):
        if entry.name.endswith(".producers"):
            files.remove(DIRECTORY / entry.name)
    assert table_facts(open_log(files, COMPACTED).producers) == table


def test_a_pass_is_made_only_when_enough_is_dirty() -> None:
    log = open_log(MemoryFiles(), replace(COMPACTED, min_dirty_ratio=0.5))
    assert plan_compaction(log, 0) is None
    for number in range(60):
        write(log, (f"key {number}", "x"))
    seal(log)
    assert compact(log, now_ms=0)
    for number in range(10):
        write(log, (f"key {number}", "x"))
    seal(log)
    assert not compact(log, now_ms=0)
    for number in range(60):
        write(log, (f"key {number}", "x"))
    seal(log)
    assert compact(log, now_ms=0)


def test_young_records_are_left_alone() -> None:
    log = open_log(MemoryFiles(), replace(COMPACTED, min_compaction_lag_ms=500))
    write(log, ("a", "1"), ("a", "2"))
    seal(log)
    assert not compact(log, now_ms=1_400)
    assert compact(log, now_ms=1_500)


def test_nothing_past_the_limit_is_touched() -> None:
    log = open_log(MemoryFiles(), COMPACTED)
    for number in range(100):
        write(log, ("a", str(number)))
    seal(log)
    boundary = log.segments[2].base_offset
    compaction = plan_compaction(log, 0, limit_offset=boundary)
    assert compaction is not None
    compaction.run()
    compaction.apply()
    compaction.finish()
    assert [record.offset for record in records_of(log)] == list(range(boundary - 1, 100))


def test_more_keys_than_fit_in_memory_take_several_passes() -> None:
    files = MemoryFiles()
    log = open_log(files, COMPACTED)
    for number in range(200):
        write(log, (f"key {number % 50}", str(number)))
    seal(log)
    passes = 0
    while (compaction := plan_compaction(log, 0, keys_max=7)) is not None:
        compaction.run()
        assert len(compaction._last_offsets) <= 7
        compaction.apply()
        compaction.finish()
        passes += 1
    assert passes > 10
    assert CleanedTo.load(files, DIRECTORY).offset == 200
    assert [record.offset for record in records_of(log)] == list(range(150, 200))


def test_a_damaged_segment_is_left_as_it_is() -> None:
    files = MemoryFiles()
    log = open_log(files, COMPACTED)
    for number in range(60):
        write(log, ("a", str(number)))
    seal(log)
    damaged = log.segments[1]
    path = log_path(DIRECTORY, damaged.base_offset)
    files.flip_bit(path, damaged.size // 2)
    content = files.open(path).read(0, damaged.size)
    compact(log, now_ms=0)
    assert files.open(path).read(0, 1 << 20) == content
    assert len(read_all(log)) == (log.segments[2].base_offset - damaged.base_offset - 1) + 1
    assert log.corrupt_bytes > 0


def test_a_full_disk_abandons_the_pass_and_loses_nothing() -> None:
    files = MemoryFiles()
    log = open_log(files, COMPACTED)
    for number in range(60):
        write(log, (f"key {number}", "x"))
        write(log, ("same", "x"))
    seal(log)
    before = read_all(log)
    files.capacity_bytes = sum(entry.size for entry in files.entries(DIRECTORY)) + 500
    with pytest.raises(DiskFull):
        compact(log, now_ms=0)
    assert not [entry for entry in files.entries(DIRECTORY) if entry.name.endswith(".cleaned")]
    assert read_all(log) == before
    files.capacity_bytes = None
    assert compact(log, now_ms=0)
    assert len(records_of(log)) == 61


def test_segments_under_compaction_are_not_dropped() -> None:
    log = open_log(MemoryFiles(), COMPACTED)
    for number in range(60):
        write(log, ("a", str(number)))
    seal(log)
    compaction = plan_compaction(log, 0)
    assert compaction is not None
    compaction.run()
    assert log.trim(40) == []
    compaction.apply()
    compaction.finish()
    assert log.start_offset == 40
    assert [record.offset for record in records_of(log)] == [59]


def test_offsets_in_a_gap_lead_to_the_next_record() -> None:
    log = open_log(MemoryFiles(), COMPACTED)
    for number in range(100):
        write(log, ("same" if number % 10 else f"key {number}", "x"))
    seal(log)
    compact(log, now_ms=0)
    kept = [record.offset for record in records_of(log)]
    for offset in range(100):
        found = log.read(offset, 1, log.end_offset)
        assert found is not None
        assert parse_header(found.read()).last_offset == next(at for at in kept if at >= offset)
        limited = log.read(offset, 1 << 20, kept[3])
        assert (limited is None) == (offset > kept[2])


def test_a_batch_that_becomes_too_large_blocks_neither_compaction_nor_a_search_by_time() -> None:
    """It was stored unread: it stays whole, and a search finds its start."""
    log = open_log(MemoryFiles(), COMPACTED)
    write(log, ("a", "1"), ("b", "1"))
    bomb = encode_batch([Record(0, 2_000, b"bomb", bytes(20 * 1024 * 1024))], codec=Codec.ZSTD)
    append(log, memoryview(bomb))
    write(log, ("a", "2"))
    seal(log)
    found = log.find_time(1_500)
    assert found is not None
    assert found.offset == 2
    assert compact(log, now_ms=0)
    offsets = [parse_header(batch).base_offset for batch in read_all(log, 300)]
    assert 2 in offsets
    assert log.end_offset == 4
