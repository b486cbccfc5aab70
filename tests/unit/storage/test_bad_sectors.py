"""Pages that the disk cannot read, and bits that rot unnoticed: all else is served, and nothing that is wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.unit.storage.samples import COMPACTED, DIRECTORY, append, base_of, make_batch, open_log, read_all, read_past

from penstock.errors import DamagedRecords
from penstock.storage.compaction import compact
from penstock.storage.config import UNLIMITED, LogConfig
from penstock.storage.inspect import inspect_log
from penstock.storage.log import Log
from penstock.storage.scrubbing import SegmentCheck
from penstock.storage.segment import index_path, log_path
from penstock.testing.files import SECTOR_BYTES, MemoryFiles

CONFIG = LogConfig(segment_bytes=40_000, index_interval_bytes=4096, retention_ms=UNLIMITED)


def filled(files: MemoryFiles, count: int = 150, config: LogConfig = CONFIG) -> tuple[Log, list[bytes]]:
    """A log of a few segments, each a few pages long."""
    log = open_log(files, config)
    rng = random.Random(1)
    stored = []
    for number in range(count):
        batch = make_batch(
            value=rng.randbytes(rng.randint(100, 1500)), key=b"key %d" % number, timestamp=1_000 + number
        )
        append(log, batch)
        stored.append(bytes(batch))
    log.sync()
    return log, stored


def spans(stored: list[bytes], base_offset: int) -> list[tuple[int, int, bytes]]:
    """(start, end, batch) of what lies in the segment that begins with an offset."""
    found, position = [], 0
    for batch in stored[base_offset:]:
        if position + len(batch) > CONFIG.segment_bytes:
            break
        found.append((position, position + len(batch), batch))
        position += len(batch)
    return found


def without_page(stored: list[bytes], base_offset: int, position: int) -> list[bytes]:
    """What is left when the page around a position of a segment is gone."""
    start = position // SECTOR_BYTES * SECTOR_BYTES
    lost = [batch for first, end, batch in spans(stored, base_offset) if first < start + SECTOR_BYTES and start < end]
    return [batch for batch in stored if batch not in lost]


@pytest.mark.parametrize("ending", ["runs on", "stopped", "killed"])
def test_a_bad_sector_of_a_sealed_segment_hides_its_batches_alone(ending: str) -> None:
    files = MemoryFiles()
    log, stored = filled(files)
    if ending == "stopped":
        log.close()
    path = log_path(DIRECTORY, log.segments[1].base_offset)
    for position in (0, 10_000, log.segments[1].size - 1):
        files.break_sector(path, position)
        if ending != "runs on":
            log = open_log(files, CONFIG)
        base_offset = log.segments[1].base_offset
        served = read_whole_log(log)
        assert served == without_page(stored, base_offset, position)
        assert log.corrupt_bytes >= SECTOR_BYTES or position > 30_000
        assert files.size(path) == log.segments[1].size, "nothing is cut"
        files.mend_sectors(path)
        log = open_log(files, CONFIG)
        assert read_all(log) == stored


def read_whole_log(log: Log) -> list[bytes]:
    """As `read_all`, trying again where it is told to."""
    for _ in range(10):
        try:
            return read_all(log)
        except DamagedRecords:
            continue
    raise AssertionError("a read never got past the damage")


def test_a_bad_sector_is_met_by_every_way_of_reading() -> None:
    files = MemoryFiles()
    log, stored = filled(files)
    segment = log.segments[1]
    files.break_sector(log_path(DIRECTORY, segment.base_offset), 10_000)
    expected = without_page(stored, segment.base_offset, 10_000)
    log = open_log(files, CONFIG)
    for offset in range(len(stored)):
        for max_bytes in (1, 3_000, 1 << 20):
            read_past(log, offset, max_bytes)
    assert [part.read() for part in log.batches(0)] == expected
    log = open_log(files, CONFIG)
    with pytest.raises(DamagedRecords):
        list(log.batches(0))
    with pytest.raises(DamagedRecords):
        log.find_time(1_000 + len(stored) - 1)
    assert log.find_dated(0, log.largest_timestamp) is not None
    check = SegmentCheck(files, open_log(files, CONFIG).segments[1], is_settled=True)
    while not check.is_done:
        check.step(3_000)
    assert check.has_found_damage
    assert any(report.holes for report in inspect_log(files, DIRECTORY).segments)


def test_a_bad_sector_in_the_middle_of_the_tail_is_kept_by_recovery() -> None:
    files = MemoryFiles()
    log, stored = filled(files)
    active = log.segments[-1]
    assert active.size > 2 * SECTOR_BYTES
    files.break_sector(log_path(DIRECTORY, active.base_offset), 0)
    again = open_log(files, CONFIG)
    assert read_all(again) == without_page(stored, active.base_offset, 0)
    assert again.end_offset == log.end_offset
    assert again.bytes_cut == 0


@pytest.mark.parametrize("is_all", [False, True])
def test_an_unreadable_end_is_not_cut_and_writing_goes_on_behind_it(is_all: bool) -> None:
    files = MemoryFiles()
    log, stored = filled(files)
    active = log.segments[-1]
    path = log_path(DIRECTORY, active.base_offset)
    if is_all:
        for position in range(0, active.size, SECTOR_BYTES):
            files.break_sector(path, position)
        left = [batch for batch in stored if base_of(batch) < active.base_offset]
    else:
        files.break_sector(path, active.size - 1)
        left = without_page(stored, active.base_offset, active.size - 1)
    again = open_log(files, CONFIG)
    assert again.is_doubtful
    assert again.bytes_cut == 0
    assert files.size(path) == active.size
    late = make_batch(value=b"late")
    append(again, late)
    again.sync()
    assert read_whole_log(again) == [*left, bytes(late)]
    files.mend_sectors(path)
    again.close()
    back = open_log(files, CONFIG)
    served = read_whole_log(back)
    assert bytes(late) in served, "what was written since is not shadowed by what came back"
    assert len({base_of(batch) for batch in served}) == len(served)


def test_an_unreadable_index_costs_a_scan() -> None:
    files = MemoryFiles()
    log, stored = filled(files)
    log.close()
    for segment in log.segments:
        files.break_sector(index_path(DIRECTORY, segment.base_offset), 0)
    for name in ("leader-epochs", "aborted-transactions"):
        if files.exists(DIRECTORY / name):
            files.break_sector(DIRECTORY / name, 0)
    assert read_all(open_log(files, CONFIG)) == stored


def test_compaction_leaves_a_segment_with_a_bad_sector_alone() -> None:
    files = MemoryFiles()
    log, stored = filled(files, config=LogConfig(**{**_fields(COMPACTED), "segment_bytes": 40_000}))
    damaged = log.segments[1]
    path: Path = log_path(DIRECTORY, damaged.base_offset)
    files.break_sector(path, 10_000)
    assert compact(log, now_ms=10_000) in {True, False}
    assert files.size(path) == damaged.size
    kept = {base_of(batch) for batch in read_whole_log(log)}
    assert {base_of(batch) for batch in without_page(stored, damaged.base_offset, 10_000)} <= kept


def _fields(config: LogConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


@pytest.mark.parametrize("where", ["sealed", "active"])
@pytest.mark.parametrize("is_read_before", [False, True])
def test_rot_that_no_file_system_notices_is_never_handed_out(where: str, is_read_before: bool) -> None:
    files = MemoryFiles()
    log, stored = filled(files)
    if is_read_before:
        assert read_all(log) == stored
    segment = log.segments[1] if where == "sealed" else log.segments[-1]
    first, _, victim = spans(stored, segment.base_offset)[2]
    files.rot(log_path(DIRECTORY, segment.base_offset), first + 100)
    assert read_all(log) == [batch for batch in stored if batch != victim]
    assert log.corrupt_bytes == len(victim)


def test_bytes_that_rot_between_finding_and_reading_them_are_an_error_and_a_hole() -> None:
    files = MemoryFiles()
    log, stored = filled(files)
    found = log.read(0, 5_000, log.end_offset)
    assert found is not None
    files.rot(log_path(DIRECTORY, 0), 100)
    with pytest.raises(DamagedRecords, match="Try again"):
        found.read()
    assert log.corrupt_bytes == len(stored[0])
    assert read_all(log) == stored[1:]
