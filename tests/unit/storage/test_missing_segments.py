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
from penstock.storage.holes import OffsetRange
from penstock.storage.log import Log
from penstock.storage.segment import index_path, log_path
from penstock.testing.files import MemoryFiles


def without(which: int, *, is_clean: bool = True) -> tuple[MemoryFiles, OffsetRange, list[bytes]]:
    """A log of 60 records that has lost a file: which offsets are gone, and the batches that are left."""
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
    files.sync_directory(DIRECTORY)
    return files, lost, [batch for batch in stored if base_of(batch) not in lost]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_missing_sealed_segment_is_damage_from_the_start_on(which: int, is_clean: bool) -> None:
    files, lost, left = without(which, is_clean=is_clean)
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
