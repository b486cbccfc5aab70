"""Flipped bits are reported and never served; everything else is served and nothing is deleted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.unit.storage.samples import (
    DIRECTORY,
    append,
    base_of,
    fill,
    make_batch,
    open_log,
    producers_of,
    read_all,
    read_past,
    table_facts,
)

from penstock.errors import DamagedRecords
from penstock.records import Codec, check_batch, iter_batches, parse_header
from penstock.records.header import seal
from penstock.storage.log import Log
from penstock.storage.ranges import OffsetRange
from penstock.storage.segment import log_path
from penstock.testing.files import MemoryFiles


def filled(count: int = 60) -> tuple[MemoryFiles, Log, list[bytes]]:
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, count, producer_id=4)
    return files, log, stored


def contents(files: MemoryFiles) -> dict[str, bytes]:
    return {
        entry.name: files.open(DIRECTORY / entry.name).read(0, entry.size)
        for entry in files.entries(DIRECTORY)
        if entry.name.endswith(".log")
    }


def owner_of(log: Log, path: Path, position: int, stored: list[bytes]) -> bytes:
    """The batch that a byte of a file belongs to."""
    segment = next(segment for segment in log.segments if log_path(DIRECTORY, segment.base_offset) == path)
    at = 0
    for batch in stored:
        if base_of(batch) >= segment.base_offset:
            at += len(batch)
            if at > position:
                return batch
    raise AssertionError("no batch there")


@pytest.mark.parametrize("bit", [0, 7])
@pytest.mark.parametrize("reopen", [False, True])
def test_any_flipped_bit_of_a_sealed_segment_hides_its_batch_alone(bit: int, reopen: bool) -> None:
    files, log, stored = filled()
    log.close()
    sealed = log.segments[1]
    path = log_path(DIRECTORY, sealed.base_offset)
    for position in range(0, sealed.size, 3):
        if reopen:
            log = open_log(files)
        victim = owner_of(log, path, position, stored)
        in_batch = position - stored_position(log, path, victim, stored)
        files.flip_bit(path, position, bit)
        on_disk = contents(files)
        served = read_all(log, 700)
        if 12 <= in_batch < 16:  # the leader epoch: neither the checksum covers it nor the order gives it away
            assert [batch[16:] for batch in served] == [batch[16:] for batch in stored]
        else:
            assert served == [batch for batch in stored if batch != victim]
            assert log.corrupt_bytes >= len(victim)
        assert contents(files) == on_disk
        files.flip_bit(path, position, bit)
    assert read_all(log) == stored, "a file that is right again is served again"


def stored_position(log: Log, path: Path, batch: bytes, stored: list[bytes]) -> int:
    segment = next(segment for segment in log.segments if log_path(DIRECTORY, segment.base_offset) == path)
    return sum(len(other) for other in stored if segment.base_offset <= base_of(other) < base_of(batch))


def test_damage_is_never_served_from_any_offset_with_any_size() -> None:
    files, log, _ = filled()
    log.close()
    rng = random.Random(3)
    for segment in log.segments:
        for _ in range(3):
            files.flip_bit(log_path(DIRECTORY, segment.base_offset), rng.randrange(segment.size))
    log = open_log(files)
    for offset in range(60):
        for max_bytes in (1, 200, 500, 10_000):
            found = read_past(log, offset, max_bytes)
            data = memoryview(b"" if found is None else found.read())
            while data:
                size = parse_header(data).size
                check_batch(data[:size])
                data = data[size:]
    for part in log.batches(0):
        check_batch(memoryview(part.read()))
    assert log.corrupt_bytes > 0


def damaged_at(victims: set[int]) -> tuple[Log, list[bytes]]:
    """A log of batches of one record each, some of them damaged in a sealed segment."""
    files, log, stored = filled()
    log.close()
    for segment in log.segments[:-1]:
        at = 0
        for batch in stored:
            if segment.base_offset <= base_of(batch) < segment.next_offset:
                if base_of(batch) in victims:
                    files.flip_bit(log_path(DIRECTORY, segment.base_offset), at + 70)
                at += len(batch)
    return open_log(files), stored


def test_a_read_ends_before_damage_and_a_read_at_it_is_refused() -> None:
    log, _ = damaged_at({20, 21})
    offset = 0
    while offset < 20:
        found = log.read(offset, 1 << 20, log.end_offset)
        assert found is not None
        offset = list(iter_batches(memoryview(found.read())))[-1][1].next_offset
    assert offset == 20
    for within in (20, 21):
        with pytest.raises(DamagedRecords) as raised:
            log.read(within, 1 << 20, log.end_offset)
        assert (raised.value.first_offset, raised.value.next_offset) == (20, 22)
    assert log.read(22, 1 << 20, log.end_offset) is not None
    assert log.damage() == [OffsetRange(20, 22)]


def test_a_log_is_not_replayed_over_damage() -> None:
    log, stored = damaged_at({20})
    replayed: list[bytes] = []
    with pytest.raises(DamagedRecords):
        replayed.extend(part.read() for part in log.batches(0))
    assert replayed == stored[:20]
    assert [part.read() for part in log.batches(21)] == stored[21:]
    log.lost = (OffsetRange(20, 21),)
    assert [part.read() for part in log.batches(0)] == stored[:20] + stored[21:]


def test_what_is_lost_everywhere_is_gone_past_and_nothing_else() -> None:
    log, stored = damaged_at({20, 30})
    log.lost = (OffsetRange(20, 21),)
    found = log.read(20, 1 << 20, log.end_offset)
    assert found is not None
    assert base_of(found.read()) == 21
    assert log.lost_at(20) == OffsetRange(20, 21)
    assert log.lost_at(21) is None
    with pytest.raises(DamagedRecords):
        log.read(30, 1 << 20, log.end_offset)
    assert read_all(log) == [batch for batch in stored if base_of(batch) not in {20, 30}]


def test_a_time_is_not_looked_up_behind_damage_that_may_hold_it() -> None:
    log, _ = damaged_at({20})
    assert read_past(log, 19) is not None
    with pytest.raises(DamagedRecords):
        log.read(20, 1, log.end_offset)
    assert log.find_time(0) is not None
    with pytest.raises(DamagedRecords):
        log.find_time(1 << 40)
    log.lost = (OffsetRange(20, 21),)
    assert log.find_time(1 << 40) is None


@pytest.mark.parametrize("is_clean", [True, False])
def test_damage_in_the_unsealed_segment_is_kept_and_the_rest_is_served(is_clean: bool) -> None:
    files, log, stored = filled(50)
    if is_clean:
        log.close()
    else:
        log.sync()
    active = log.segments[-1]
    in_active = [batch for batch in stored if base_of(batch) >= active.base_offset]
    assert len(in_active) > 4
    path = log_path(DIRECTORY, active.base_offset)
    files.flip_bit(path, len(in_active[0]) + len(in_active[1]) + 70)
    on_disk = contents(files)
    log = open_log(files)
    expected = [batch for batch in stored if batch != in_active[2]]
    assert read_all(log) == expected
    assert log.corrupt_bytes == len(in_active[2])
    assert log.bytes_cut == 0
    assert contents(files) == on_disk
    log.roll()
    added = fill(log, 3)
    log.close()
    assert read_all(open_log(files)) == [*expected, *added]


def test_a_length_that_was_flipped_hides_no_other_batch() -> None:
    files, log, _ = filled(50)
    log.sync()
    path = log_path(DIRECTORY, log.segments[-1].base_offset)
    for bit in range(8):
        files.flip_bit(path, 11, bit)
        assert len(read_all(open_log(files))) == 49
        files.flip_bit(path, 11, bit)


def test_a_batch_inside_a_damaged_message_is_not_taken_for_one() -> None:
    files = MemoryFiles()
    log = open_log(files)
    fill(log, 2)
    inner = make_batch(3)
    inner[:8] = (5).to_bytes(8, "big")
    append(log, make_batch(value=bytes(inner)))
    fill(log, 2)
    log.sync()
    stored = read_all(log)
    files.flip_bit(log_path(DIRECTORY, 0), len(stored[0]) + len(stored[1]) + 62)
    assert read_all(open_log(files)) == [*stored[:2], *stored[3:]]


@pytest.mark.parametrize("suffix", [".index", ".producers", "leader-epochs", "log-start"])
def test_flips_in_helper_files_cost_at_most_a_scan(suffix: str) -> None:
    for position in range(0, 5_000, 7):
        files, log, stored = filled()
        log.trim(3)
        log.close()
        names = [entry.name for entry in files.entries(DIRECTORY) if entry.name.endswith(suffix) and entry.size]
        assert names
        hit = False
        for name in names:
            if position < files.open(DIRECTORY / name).size:
                files.flip_bit(DIRECTORY / name, position, position % 8)
                hit = True
        if not hit:
            return
        again = open_log(files)
        start = again.start_offset
        assert start in (0, 3)
        assert read_all(again) == stored[start:]
        assert table_facts(again.producers) == producers_of(stored)
        assert again.epochs.items() == [(0, 0)]
        assert again.corrupt_bytes == 0


def test_strange_files_are_left_alone() -> None:
    files, log, stored = filled(10)
    log.close()
    for name in ("notes.log", "00.index", "x.producers", "README", "00000000000000000000.log.bak"):
        files.open(DIRECTORY / name, create=True).write(b"hello")
    log = open_log(files)
    assert read_all(log) == stored
    assert files.exists(DIRECTORY / "notes.log")
    assert files.exists(DIRECTORY / "00000000000000000000.log.bak")


def test_a_sealed_file_cut_by_a_stranger_is_reported() -> None:
    files, log, stored = filled()
    log.close()
    log = open_log(files)
    segment = log.segments[1]
    assert read_all(log) == stored
    files.open(log_path(DIRECTORY, segment.base_offset)).truncate(segment.size // 2)
    served = read_all(log)
    assert all(batch in stored for batch in served)
    assert len(stored) - len(served) in range(8, 12)
    assert log.corrupt_bytes > 0


def test_a_batch_whose_records_make_no_sense_does_not_stop_a_search_by_time() -> None:
    log = open_log(MemoryFiles())
    batch = make_batch(3, timestamp=5_000, codec=Codec.NONE)
    batch[61] = 0x7F  # the first record's length
    seal(batch)
    append(log, batch)
    assert log.find_time(5_001) == (0, 5_002, 0)


@pytest.mark.parametrize("part", [7, 30, -3])
def test_a_log_that_is_cut_where_it_is_damaged_keeps_nothing_of_the_damage(part: int) -> None:
    """Not even a batch that is whole but for its offset, which no checksum covers."""
    files, log, stored = filled(50)
    log.close()
    active = log.segments[-1]
    in_active = [batch for batch in stored if base_of(batch) >= active.base_offset]
    victim = next(batch for batch in in_active[2:] if base_of(batch) % 2 == 0)
    start = sum(len(batch) for batch in in_active if base_of(batch) < base_of(victim))
    files.flip_bit(log_path(DIRECTORY, active.base_offset), start + part % len(victim))
    log = open_log(files)
    read_all(log)
    assert log.first_damage() == base_of(victim)
    for offset in (base_of(victim), base_of(in_active[1])):
        log.truncate(offset)
        assert log.end_offset == offset
        assert read_all(log) == [batch for batch in stored if base_of(batch) < offset]


def test_a_log_that_is_cut_before_its_damage_ends_where_it_should() -> None:
    files, log, stored = filled(50)
    log.close()
    active = log.segments[-1]
    in_active = [batch for batch in stored if base_of(batch) >= active.base_offset]
    files.flip_bit(log_path(DIRECTORY, active.base_offset), sum(map(len, in_active[:4])) + 30)
    log = open_log(files)
    read_all(log)
    log.truncate(base_of(in_active[2]))
    assert log.end_offset == base_of(in_active[2])
    assert read_all(log) == [batch for batch in stored if base_of(batch) < base_of(in_active[2])]


@pytest.mark.parametrize("bit", [0, 4, 16, 30])
def test_a_last_batch_whose_offset_was_flipped_is_doubted_and_can_be_cut(bit: int) -> None:
    files, log, stored = filled(41)
    log.sync()
    last = log.segments[-1]
    victim = stored[-1]
    due = base_of(victim)
    assert last.base_offset < due
    assert not due >> bit & 1, "it has to look like a gap"
    path = log_path(DIRECTORY, last.base_offset)
    files.flip_bit(path, last.size - len(victim) + 7 - bit // 8, bit % 8)
    log = open_log(files)
    assert log.first_damage() == due
    assert read_all(log)[-1][16:] == victim[16:], "its records are good"
    log.truncate(due)
    assert (log.end_offset, log.first_damage()) == (due, None)
    assert read_all(log) == stored[:-1]


def test_a_gap_that_the_next_batch_agrees_with_is_no_damage() -> None:
    stored = fill(open_log(MemoryFiles()), 9)
    files = MemoryFiles()
    log = open_log(files)
    for batch in (stored[0], stored[7], stored[8]):
        log.append_stored(memoryview(batch), parse_header(batch))
    log.sync()
    assert open_log(files).first_damage() is None
