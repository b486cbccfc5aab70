"""Inspecting a directory tells what is in it and changes nothing."""

from __future__ import annotations

from tests.unit.storage.samples import DIRECTORY, append, base_of, fill, make_batch, open_log

from penstock.records import Record, decode_records, encode_batch, encode_marker
from penstock.records.header import seal
from penstock.storage.index import Index
from penstock.storage.inspect import dump_batches, dump_records, inspect_log
from penstock.storage.ranges import Hole
from penstock.storage.segment import index_path, log_path
from penstock.testing.files import MemoryFiles


def test_a_sound_log_has_no_problems() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 50)
    append(log, make_batch(7, timestamp=9_000), leader_epoch=2)
    log.trim(3)
    log.close()
    steps = files.steps
    report = inspect_log(files, DIRECTORY, decodes_records=True)
    assert files.steps == steps
    assert report.problems == ()
    assert (report.start_offset, report.end_offset) == (3, 57)
    assert (report.batches, report.records, report.size_bytes) == (51, 57, log.size_bytes)
    assert report.epochs == ((0, 0), (2, 50))
    assert [segment.base_offset for segment in report.segments] == [segment.base_offset for segment in log.segments]
    assert all(segment.has_index for segment in report.segments)
    assert report.segments[0].first_timestamp == 1_000
    assert report.segments[-1].max_timestamp == 9_006
    assert (report.corrupt_bytes, report.torn_tail_bytes) == (0, 0)


def test_a_live_log_is_sound_too() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 30)
    log.close()
    log = open_log(files)
    fill(log, 30)
    log.sync()
    report = inspect_log(files, DIRECTORY)
    assert report.problems == ()
    assert report.records == 60


def test_damage_is_named() -> None:
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, 50)
    log.close()
    files.flip_bit(log_path(DIRECTORY, 0), len(stored[0]) + 65)
    report = inspect_log(files, DIRECTORY)
    hole = Hole(len(stored[0]), len(stored[0]) + len(stored[1]))
    assert report.segments[0].holes == (hole,)
    assert report.corrupt_bytes == len(stored[1])
    assert report.problems == (f"{0:020}.log: bytes {hole.start} to {hole.end} hold no correct batch.",)
    assert report.records == 49


def test_a_torn_tail_is_told_from_damage() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 5)
    files.open(log_path(DIRECTORY, 0)).write(b"torn")
    report = inspect_log(files, DIRECTORY)
    assert (report.torn_tail_bytes, report.corrupt_bytes, report.problems) == (4, 0, ())
    assert report.end_offset == 5


def test_an_index_that_disagrees_is_named() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 50)
    log.close()
    segment = log.segments[0]
    wrong = Index(0)
    wrong.log_size = segment.size
    wrong._offsets.append(5)
    wrong._positions.append(0)
    wrong._timestamps.append(1)
    wrong.save(files, index_path(DIRECTORY, 0))
    files.flip_bit(index_path(DIRECTORY, log.segments[1].base_offset), 20)
    problems = inspect_log(files, DIRECTORY).problems
    assert len(problems) == 2
    assert "its index has offset 5 at byte 0, where 0 is" in problems[0]
    assert "its index is damaged" in problems[1]


def test_records_that_cannot_be_decoded_are_named_when_asked_for() -> None:
    files = MemoryFiles()
    log = open_log(files)
    batch = make_batch(3)
    batch[61] = 0x7F
    seal(batch)
    append(log, batch)
    assert inspect_log(files, DIRECTORY).problems == ()
    assert "cannot be decoded" in inspect_log(files, DIRECTORY, decodes_records=True).problems[0]
    assert list(dump_records(files, DIRECTORY)) == []


def test_batches_and_records_are_listed_from_an_offset_on() -> None:
    files = MemoryFiles()
    log = open_log(files)
    for _ in range(20):
        append(log, make_batch(5, value=bytes(50)))
    stored = [part.read() for part in log.batches(0)]
    assert [facts.header.base_offset for facts in dump_batches(files, DIRECTORY)] == [base_of(each) for each in stored]
    some = list(dump_batches(files, DIRECTORY, offset=42, limit=3))
    assert [facts.header.base_offset for facts in some] == [40, 45, 50]
    records = list(dump_records(files, DIRECTORY, offset=42, limit=6))
    assert [facts.record.offset for facts in records] == [42, 43, 44, 45, 46, 47]
    assert records[0].record == decode_records(stored[8])[2]
    assert list(dump_batches(files, DIRECTORY, limit=0)) == []


def test_an_empty_directory_is_an_empty_log() -> None:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    report = inspect_log(files, DIRECTORY)
    assert (report.start_offset, report.end_offset, report.segments) == (0, 0, ())


def test_markers_are_named() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 1)
    for is_commit in (True, False):
        marker = encode_marker(7, 0, is_commit=is_commit, coordinator_epoch=4, timestamp_ms=1_000)
        append(log, memoryview(marker))
    odd = encode_batch([Record(0, 1_000, b"?", b"?")], producer_id=7, producer_epoch=0, is_control=True)
    append(log, memoryview(odd))
    log.close()
    assert [facts.marker and facts.marker.name for facts in dump_batches(files, DIRECTORY)] == [
        None,
        "commit",
        "abort",
        None,
    ]
    assert [facts.batch.marker for facts in dump_records(files, DIRECTORY)][1:3] == [(True, 4), (False, 4)]
