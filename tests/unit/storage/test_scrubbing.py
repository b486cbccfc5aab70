"""A check finds damage in every place of a sealed segment, though nobody reads it, and leaves the files as they are."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.storage.samples import DIRECTORY, append, base_of, fill, make_batch, open_log, read_all

from penstock.storage.files import DiskFiles
from penstock.storage.index import Index
from penstock.storage.log import Log
from penstock.storage.scrubbing import SegmentCheck
from penstock.storage.segment import Segment, index_path, log_path
from penstock.testing.files import MemoryFiles

PART_BYTES = 300
LENGTH, EPOCH, CRC, RECORDS = 10, 15, 18, 75  # positions in a batch


def check(log: Log, segment: Segment, part_bytes: int = PART_BYTES) -> SegmentCheck:
    """All of it, part by part."""
    found = SegmentCheck(log.files, segment, is_settled=segment in log.settled_segments)
    while not found.is_done:
        assert found.step(part_bytes) <= part_bytes
    return found


def sealed_log(count: int = 60) -> tuple[MemoryFiles, Log, list[bytes]]:
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, count)
    log.sync()
    assert len(log.settled_segments) > 2
    return files, log, stored


def path_of(segment: Segment) -> Path:
    return log_path(DIRECTORY, segment.base_offset)


def reopened(files: MemoryFiles, log: Log, *, is_reopened: bool) -> Log:
    return open_log(files) if is_reopened else log


def test_a_sound_segment_is_found_sound_and_read_once() -> None:
    files, log, stored = sealed_log()
    before = files.bytes_read
    for segment in log.settled_segments:
        found = check(log, segment, part_bytes=1 << 20)
        assert not found.has_found_damage
        assert not found.has_repaired_index
    assert files.bytes_read > before
    assert log.first_damage() is None
    assert read_all(log) == stored


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("place", [LENGTH, EPOCH, CRC, RECORDS])
def test_a_flipped_bit_is_found_wherever_it_is(place: int, is_reopened: bool) -> None:
    files, log, stored = sealed_log()
    for at in (0, 3, 5):
        damaged = log.settled_segments[1]
        inside = [batch for batch in stored if base_of(batch) >= damaged.base_offset]
        files.flip_bit(path_of(damaged), sum(map(len, inside[:at])) + place)
        log = reopened(files, log, is_reopened=is_reopened)
        assert check(log, log.settled_segments[1]).has_found_damage
        assert log.first_damage() == base_of(inside[at])
        assert not check(log, log.settled_segments[1]).has_found_damage, "it is known by now"
        files.flip_bit(path_of(damaged), sum(map(len, inside[:at])) + place)
        log = open_log(files)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_segment_cut_anywhere_is_found(is_reopened: bool) -> None:
    files, log, stored = sealed_log()
    cut = log.settled_segments[1]
    sizes = [len(batch) for batch in stored if base_of(batch) >= cut.base_offset]
    between = [sum(sizes[:count]) for count in range(6)]
    for left in (*between, *(position + 20 for position in between)):
        files, log, _ = sealed_log()
        files.open(path_of(cut)).truncate(left)
        log = reopened(files, log, is_reopened=is_reopened)
        check(log, log.settled_segments[1])
        good = sum(sum(sizes[: count + 1]) <= left for count in range(len(sizes)))
        assert log.first_damage() == cut.base_offset + good


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("lives", [1, 3])
def test_the_last_sealed_segment_cut_between_two_batches_is_damaged_in_every_life(lives: int, is_clean: bool) -> None:
    """It is scanned after a crash. A scan alone finds nothing wrong: only the index tells of what is gone."""
    files, log, stored = sealed_log()
    last = log.settled_segments[-1]
    size = len(next(batch for batch in stored if base_of(batch) == last.base_offset))
    if is_clean:
        log.close()
    files.open(path_of(last)).truncate(size)
    for _ in range(lives):
        log = open_log(files)
        fill(log, 1)
        log.sync()
        check(log, log.segments[-2])
        assert log.first_damage() == last.base_offset + 1
        assert is_clean or log.is_doubtful
    log.truncate(last.base_offset + 1)
    assert log.first_damage() is None
    assert open_log(files).end_offset == last.base_offset + 1


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_a_damaged_index_is_written_anew(harm: str) -> None:
    files, log, stored = sealed_log()
    damaged = log.settled_segments[1]
    path = index_path(DIRECTORY, damaged.base_offset)
    whole = files.open(path).read(0, files.size(path))
    if harm == "flipped":
        files.flip_bit(path, 70)
    elif harm == "cut":
        files.open(path).truncate(30)
    else:
        files.remove(path)
    found = check(log, damaged)
    assert found.has_repaired_index
    assert not found.has_found_damage
    assert files.open(path).read(0, files.size(path)) == whole
    assert read_all(log) == stored


def test_the_index_of_a_cut_segment_is_kept_because_it_tells_how_much_there_was() -> None:
    files, log, _ = sealed_log()
    cut = log.settled_segments[1]
    stated = cut.size
    files.open(path_of(cut)).truncate(stated // 2)
    log = open_log(files)
    found = check(log, log.settled_segments[1])
    assert found.has_found_damage
    assert not found.has_repaired_index
    assert Index.load(files, index_path(DIRECTORY, cut.base_offset), cut.base_offset, stated) is not None


def test_what_a_check_found_is_not_forgotten_by_the_next_reader() -> None:
    files, log, _ = sealed_log()
    log.close()
    damaged = log.segments[1]
    files.flip_bit(path_of(damaged), damaged.size - 5)
    log = open_log(files)
    check(log, log.segments[1])
    log.read(damaged.base_offset, 1, log.end_offset)  # of its first batch alone
    assert log.opened.has_damage
    assert log.segments[1].holes


def test_what_is_written_during_a_check_of_the_active_segment_is_left_alone() -> None:
    files, log, _ = sealed_log()
    log.close()
    log = open_log(files)
    active = log.segments[-1]
    found = SegmentCheck(files, active, is_settled=False)
    for number in range(4):
        append(log, make_batch(value=b"more %d" % number))
        if not found.is_done:
            found.step(PART_BYTES)
    while not found.is_done:
        found.step(PART_BYTES)
    assert not found.has_found_damage
    assert log.first_damage() is None


@pytest.mark.parametrize("seed", range(20))
def test_any_damage_to_a_real_file_is_found(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    log = Log.open(DiskFiles(), tmp_path, open_log(MemoryFiles()).config)
    fill(log, 60)
    log.sync()
    segment = chance.choice(log.settled_segments)
    harm: Callable[[Path, random.Random], None] = chance.choice([_flip, _cut])
    harm(log_path(tmp_path, segment.base_offset), chance)
    assert check(log, segment).has_found_damage
    log.close()


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _cut(path: Path, chance: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(chance.randrange(path.stat().st_size))
