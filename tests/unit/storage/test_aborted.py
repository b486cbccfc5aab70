"""The index of aborted transactions: searched by range, saved with care, and rebuilt from batches where it is lost."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.unit.storage.samples import COMPACTED, DIRECTORY, SMALL, append, fill, make_batch, open_log, read_all

from penstock.errors import StorageError
from penstock.records import Record, encode_batch, encode_marker, parse_header
from penstock.storage.aborted import ABORTED_FILE, AbortedRanges, AbortedTransaction, AbortedTransactions
from penstock.storage.compaction import compact
from penstock.storage.log import Log
from penstock.testing.files import MemoryFiles

PATH = DIRECTORY / ABORTED_FILE


def write(log: Log, producer_id: int, sequence: int = 0, *, key: bytes = b"k", value: bytes = b"v") -> int:
    batch = encode_batch(
        [Record(0, 1_000, key, value)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    return append(log, memoryview(batch))


def end(log: Log, producer_id: int, *, is_commit: bool, epoch: int = 0) -> int:
    marker = encode_marker(producer_id, epoch, is_commit=is_commit, coordinator_epoch=0, timestamp_ms=1_000)
    return append(log, memoryview(marker))


def abort_some(log: Log, turns: int, first_sequence: int = 0) -> None:
    for turn in range(turns):
        for producer_id in (1, 2):
            write(log, producer_id, first_sequence + turn, value=bytes(150))
        end(log, 1, is_commit=turn % 3 == 0)
        end(log, 2, is_commit=turn % 2 == 0)


def test_a_range_finds_every_transaction_that_reaches_into_it() -> None:
    """Against a plain filter, on transactions of many producers that overlap as they like."""
    rng = random.Random(5)
    for _ in range(50):
        index = AbortedTransactions(MemoryFiles(), DIRECTORY)
        opened: dict[int, int] = {}
        offset = 0
        for offset in range(120):
            producer = rng.randrange(8)
            if producer not in opened:
                opened[producer] = offset
            elif rng.random() < 0.4:
                first = opened.pop(producer)
                stable = min(opened.values(), default=offset + 1)
                if rng.random() < 0.7:
                    index.add(AbortedTransaction(producer, first, offset, stable))
        for first in range(-1, offset + 2):
            for after in (first, first + 1, first + 7, first + 60):
                expected = [each for each in index.items() if each.last_offset >= first and each.first_offset < after]
                assert index.between(first, after) == expected


def test_a_batch_is_void_within_its_own_producers_range_only() -> None:
    ranges = AbortedRanges([AbortedTransaction(1, 10, 20, 21), AbortedTransaction(1, 30, 40, 41)])

    def header(offset: int, producer_id: int = 1, *, is_transactional: bool = True) -> object:
        batch = encode_batch(
            [Record(offset, 1_000, b"k", b"v")], producer_id=producer_id, is_transactional=is_transactional
        )
        return parse_header(batch)

    assert [offset for offset in range(50) if header(offset) in ranges] == [*range(10, 21), *range(30, 41)]
    assert header(15, 2) not in ranges
    assert header(15, is_transactional=False) not in ranges
    assert ranges.has_marker(parse_header(_marker_at(40)))
    assert not ranges.has_marker(parse_header(_marker_at(39)))
    assert parse_header(_marker_at(40)) not in ranges


def _marker_at(offset: int) -> bytearray:
    marker = encode_marker(1, 0, is_commit=False, coordinator_epoch=0, timestamp_ms=1_000)
    marker[:8] = offset.to_bytes(8, "big")
    return marker


def test_the_file_is_taken_whole_or_not_at_all() -> None:
    files = MemoryFiles()
    index = AbortedTransactions(files, DIRECTORY)
    for offset in range(3):
        index.add(AbortedTransaction(offset, offset * 10, offset * 10 + 5, offset * 10))
    index.save()
    data = files.open(PATH).read(0, 1 << 20)
    again = AbortedTransactions(files, DIRECTORY)
    assert again.load()
    assert again.items() == index.items()
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            files = MemoryFiles()
            files.open(PATH, create=True).write(damaged)
            assert not AbortedTransactions(files, DIRECTORY).load()


def test_the_file_is_written_only_when_there_is_something_new() -> None:
    files = MemoryFiles()
    index = AbortedTransactions(files, DIRECTORY)
    index.save()
    steps = files.steps
    index.save()
    index.cut(10)
    index.drop_below(10)
    index.save()
    assert files.steps == steps
    index.add(AbortedTransaction(1, 0, 5, 6))
    files.is_failing_syncs = True
    with pytest.raises(StorageError):
        index.save()
    files.is_failing_syncs = False
    index.save()
    again = AbortedTransactions(files, DIRECTORY)
    assert again.load()
    assert len(again) == 1


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("loss", ["gone", "damaged"])
def test_a_lost_file_is_rebuilt_from_all_batches(is_clean: bool, loss: str) -> None:
    files = MemoryFiles()
    log = open_log(files)
    abort_some(log, 12)
    write(log, 1, 12)
    log.sync()
    entries, table = log.aborted.items(), log.producers.encode(0)
    assert len(log.segments) > 3
    assert len(entries) > 10
    if is_clean:
        log.close()
    if loss == "gone":
        files.remove(PATH)
    else:
        files.flip_bit(PATH, 20)
    files.crash(keeps_unsynced=True)
    log = open_log(files)
    assert log.aborted.items() == entries
    assert log.producers.encode(0) == table
    log.close()
    before = files.bytes_read
    assert open_log(files).aborted.items() == entries
    assert files.bytes_read - before < log.size_bytes, "the scan was for once only"


def test_a_lost_file_does_not_cost_what_the_snapshot_alone_knows() -> None:
    """Producer 9 wrote only what retention removed since; its transaction is still open."""
    files = MemoryFiles()
    log = open_log(files)
    write(log, 9)
    log.roll()
    abort_some(log, 8)
    log.delete_files(log.trim(4))
    aborted = log.aborted.items()
    log.close()
    files.remove(PATH)
    log = open_log(files)
    assert log.producers.open == {9: 0}
    assert [entry.last_offset for entry in log.aborted.items()] == [entry.last_offset for entry in aborted]


def test_the_file_of_a_log_that_was_cut_gives_way_to_its_batches() -> None:
    """The file still tells of an abort that was truncated, at offsets that are written anew."""
    files = MemoryFiles()
    log = open_log(files)
    write(log, 1)
    end(log, 1, is_commit=False)
    log.close()
    log = open_log(files)
    assert len(log.aborted) == 1
    log.truncate(0)
    write(log, 1)
    end(log, 1, is_commit=True)
    append(log, make_batch())
    files.crash(keeps_unsynced=True)
    assert open_log(files).aborted.items() == []


def test_entries_go_with_the_records_that_they_name() -> None:
    files = MemoryFiles()
    log = open_log(files)
    abort_some(log, 12)
    first = log.aborted.items()[0]
    log.trim(first.last_offset)
    assert log.aborted.items()[0] == first
    log.trim(first.last_offset + 1)
    assert first not in log.aborted.items()
    log.close()
    log = open_log(files)
    assert first not in log.aborted.items()
    log.config = replace(SMALL, retention_bytes=0)
    log.delete_files(log.expire(now_ms=0))
    assert all(entry.last_offset >= log.start_offset for entry in log.aborted.items())


def test_a_log_without_its_epochs_finds_them_in_the_last_segment_too() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 30)
    append(log, make_batch(), leader_epoch=4)
    log.close()
    files.remove(DIRECTORY / "leader-epochs")
    assert open_log(files).epochs.items() == [(0, 0), (4, 30)]


def markers_of(log: Log) -> list[tuple[int, int]]:
    headers = map(parse_header, read_all(log))
    return [(header.producer_id, header.base_offset) for header in headers if header.is_control]


def test_compaction_drops_commit_markers_without_records_but_each_producers_last() -> None:
    """As in the offsets topic of consumers that commit in transactions: the same few keys over and over."""
    files = MemoryFiles()
    log = open_log(files, COMPACTED)
    for _ in range(200):
        for producer_id in (1, 2):
            write(log, producer_id, -1, key=b"group %d" % producer_id)
            last = end(log, producer_id, is_commit=True)
    log.roll()
    log.sync()
    size = log.size_bytes
    assert compact(log, now_ms=0)
    assert markers_of(log) == [(1, last - 2), (2, last)]
    assert log.size_bytes < size / 50
    files.crash(keeps_unsynced=True)
    log = open_log(files, COMPACTED)
    assert log.producers.open == {}


def test_compaction_keeps_the_marker_of_a_transaction_with_records() -> None:
    log = open_log(MemoryFiles(), COMPACTED)
    write(log, 1, -1, key=b"stays")
    kept = end(log, 1, is_commit=True)
    write(log, 1, -1, key=b"goes")
    end(log, 1, is_commit=True)
    write(log, 1, -1, key=b"goes")
    last = end(log, 1, is_commit=True)
    log.roll()
    log.sync()
    assert compact(log, now_ms=0)
    assert markers_of(log) == [(1, kept), (1, last)]


def test_compaction_keeps_abort_markers_that_readers_are_told_to_wait_for() -> None:
    log = open_log(MemoryFiles(), COMPACTED)
    write(log, 1, -1)
    named = end(log, 1, is_commit=False)
    end(log, 1, is_commit=False)  # nothing was open: no reader hears of it
    write(log, 1, -1)
    last = end(log, 1, is_commit=True)
    log.roll()
    log.sync()
    assert compact(log, now_ms=0)
    assert markers_of(log) == [(1, named), (1, last)]


def test_compaction_stops_before_the_first_open_transaction() -> None:
    log = open_log(MemoryFiles(), COMPACTED)
    for number in range(30):
        append(log, make_batch(key=b"k", value=b"%d" % number))
    log.roll()
    first = write(log, 1, key=b"k")
    for number in range(30):
        append(log, make_batch(key=b"k", value=b"%d" % number))
    log.roll()
    log.sync()
    assert compact(log, now_ms=0)
    assert [parse_header(batch).base_offset for batch in read_all(log)] == list(range(first - 1, log.end_offset))
