"""A segment whose file is gone is damage like any other: noticed at the next start, kept in mind, never passed over."""

from __future__ import annotations

import pytest
from tests.unit.storage.samples import (
    COMPACTED,
    DIRECTORY,
    append,
    base_of,
    fill,
    make_batch,
    open_log,
    read_all,
)

from penstock.errors import DamagedRecords
from penstock.storage.compaction import compact
from penstock.storage.index import OFFSETS_IN_SEGMENT_MAX
from penstock.storage.log import Log
from penstock.storage.ranges import OffsetRange
from penstock.storage.segment import index_path, log_path
from penstock.storage.segment_list import SEGMENTS_FILE
from penstock.testing.files import MemoryFiles


def without(
    which: int, *, is_clean: bool = True, has_index: bool = True
) -> tuple[MemoryFiles, OffsetRange, list[bytes]]:
    """A log of 60 records that has lost a segment's files: which offsets are gone, and the batches that are left."""
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, 60)
    if is_clean:
        log.close()
    else:
        log.sync()
    bases = [segment.base_offset for segment in log.segments] + [60]
    lost = OffsetRange(bases[which], bases[which + 1] if which >= 0 else 60)
    if which < 0:
        lost = OffsetRange(bases[-2], 60)
    files.remove(log_path(DIRECTORY, lost.first))
    if not has_index:
        files.remove(index_path(DIRECTORY, lost.first))
    files.sync_directory(DIRECTORY)
    return files, lost, [batch for batch in stored if base_of(batch) not in lost]


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_missing_sealed_segment_is_damage_from_the_start_on(which: int, is_clean: bool, has_index: bool) -> None:
    files, lost, left = without(which, is_clean=is_clean, has_index=has_index)
    for _ in range(3):
        log = open_log(files)
        check_gap(log, lost)
        assert read_all(log) == left, "what no replica has is passed, and everything else is served"
        append(log, make_batch())
        left.append(read_all(log)[-1])
        log.close()


def check_gap(log: Log, lost: OffsetRange) -> None:
    assert log.is_doubtful
    assert log.start_offset == 0
    assert log.first_damage() == lost.first
    assert log.damage() == [lost]
    with pytest.raises(DamagedRecords):
        log.read(lost.first, 1 << 20, log.end_offset)


def test_a_missing_last_segment_does_not_give_its_offsets_away_again() -> None:
    files, lost, left = without(-1)
    for _ in range(2):
        log = open_log(files)
        check_gap(log, lost)
    assert append(log, make_batch()) == 60
    assert read_all(log)[:-1] == left


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_last_segment_without_a_trace_may_have_had_any_offset_that_a_segment_can_have(is_clean: bool) -> None:
    files, lost, left = without(-1, is_clean=is_clean, has_index=False)
    lost = lost._replace(next=lost.first + OFFSETS_IN_SEGMENT_MAX)
    for _ in range(2):
        log = open_log(files)
        check_gap(log, lost)
    assert append(log, make_batch()) == lost.next
    assert read_all(log)[:-1] == left


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_only_segment_is_missed_as_well(is_clean: bool) -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 3)
    log.sync()
    if is_clean:
        log.close()
    files.remove(log_path(DIRECTORY, 0))
    files.remove(index_path(DIRECTORY, 0))
    for _ in range(2):
        check_gap(open_log(files), OffsetRange(0, OFFSETS_IN_SEGMENT_MAX))


def test_a_log_that_never_had_a_record_lacks_none() -> None:
    files = MemoryFiles()
    open_log(files).close()
    files.remove(log_path(DIRECTORY, 0))
    files.remove(index_path(DIRECTORY, 0))
    log = open_log(files)
    assert not log.is_doubtful
    assert log.end_offset == 0


def test_a_missing_segment_with_a_damaged_index_is_missed_as_well() -> None:
    files, lost, _ = without(1)
    files.open(index_path(DIRECTORY, lost.first)).patch(20, b"?")
    check_gap(open_log(files), lost)


def test_segments_side_by_side_are_missed_together() -> None:
    files, first, left = without(1, has_index=False)
    [second] = [segment for segment in open_log(files).segments if segment.base_offset == first.next]
    lost = OffsetRange(first.first, second.next_offset)
    files, _, left = without(1, has_index=False)
    files.remove(log_path(DIRECTORY, first.next))
    files.remove(index_path(DIRECTORY, first.next))
    log = open_log(files)
    assert log.damage() == [first, OffsetRange(first.next, lost.next)]
    assert read_all(log) == [batch for batch in left if base_of(batch) not in lost]


def test_a_directory_from_before_there_was_a_list_opens_and_is_listed() -> None:
    files, _, left = without(1, has_index=False)
    files.remove(DIRECTORY / SEGMENTS_FILE)
    log = open_log(files)
    assert log.first_damage() is None, "nothing tells what was there, as gaps may be"
    log.close()
    [_, second, *_] = log.segments
    files.remove(log_path(DIRECTORY, second.base_offset))
    files.remove(index_path(DIRECTORY, second.base_offset))
    assert open_log(files).first_damage() == second.base_offset
    assert left


def test_a_damaged_list_tells_nothing() -> None:
    files, _, _ = without(1, has_index=False)
    files.open(DIRECTORY / SEGMENTS_FILE).patch(3, b"?")
    assert open_log(files).first_damage() is None


def test_what_was_removed_on_purpose_is_not_missed() -> None:
    files = MemoryFiles()
    log = open_log(files, COMPACTED)
    fill(log, 60)
    log.sync()
    log.delete_files(log.trim(20))
    compact(log, now_ms=10_000)
    log.truncate(50)
    for _ in range(2):
        log = open_log(files, COMPACTED)
        assert not log.damage()
        assert not log.is_doubtful
    log.begin_at(100)
    assert not open_log(files, COMPACTED).damage()
    log.truncate(0)
    assert not open_log(files, COMPACTED).damage()


def test_a_full_disk_does_not_keep_old_segments_from_being_removed() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 60)
    log.sync()
    dropped = log.trim(30)
    files.capacity_bytes = files.used_bytes
    log.delete_files(dropped)
    assert not files.exists(log_path(DIRECTORY, 0))
    second = log.segments[1].base_offset
    log.close()
    assert not open_log(files).damage()
    for path in (log_path(DIRECTORY, second), index_path(DIRECTORY, second)):
        files.remove(path)
    assert open_log(files).first_damage() == second, "listed again as soon as there is room"


def test_a_missing_segment_is_copied_anew_like_other_damage() -> None:
    files, lost, left = without(1)
    log = open_log(files)
    log.truncate(lost.first)
    assert log.end_offset == lost.first
    assert log.first_damage() is None
    again = open_log(files)
    assert again.first_damage() is None
    assert read_all(again) == [batch for batch in left if base_of(batch) < lost.first]


def test_compaction_does_not_close_the_gap() -> None:
    files, lost, _ = without(1)
    log = open_log(files, COMPACTED)
    compact(log, now_ms=10_000)
    assert log.damage() == [lost]
    assert open_log(files, COMPACTED).damage() == [lost]


def test_an_index_left_by_a_removal_is_no_missing_segment() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 60)
    log.close()
    first = log.segments[0].base_offset
    data = files.open(index_path(DIRECTORY, first)).read(0, 1 << 20)
    log.delete_files(log.trim(30))
    files.open(index_path(DIRECTORY, first), create=True).write(data)
    again = open_log(files)
    assert again.first_damage() is None
    assert not files.exists(index_path(DIRECTORY, first))
