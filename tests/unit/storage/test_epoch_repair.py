"""A damaged leader epoch, which no checksum covers, is found; the records that go with it are served all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.storage.samples import DIRECTORY, SMALL, append, header_of, make_batch, open_log, read_all

from penstock.storage.config import LogConfig
from penstock.storage.epoch_repair import redate
from penstock.storage.log import Log
from penstock.storage.recovery import EPOCHS_FILE
from penstock.storage.segment import log_path
from penstock.testing.files import MemoryFiles

ONE_SEGMENT = LogConfig(segment_bytes=1 << 20, index_interval_bytes=200)


def written(epochs: list[int], config: LogConfig = ONE_SEGMENT) -> tuple[MemoryFiles, Log, list[bytes]]:
    """A log with a batch of each of these epochs, synced and then left alone, as by a power cut."""
    files = MemoryFiles()
    log = open_log(files, config)
    stored = []
    for number, epoch in enumerate(epochs):
        batch = make_batch(value=b"value %d" % number)
        append(log, batch, epoch)
        stored.append(bytes(batch))
    log.sync()
    return files, log, stored


def place_of(log: Log, stored: list[bytes], number: int) -> tuple[Path, int]:
    """Where the leader epoch of a batch lies."""
    segment = next(each for each in reversed(log.segments) if each.base_offset <= number)
    return log_path(DIRECTORY, segment.base_offset), segment.locate(number) + 12


def flip(files: MemoryFiles, log: Log, stored: list[bytes], number: int, bit: int) -> None:
    path, position = place_of(log, stored, number)
    files.flip_bit(path, position + 3 - bit // 8, bit % 8)


def values(batches: list[bytes]) -> list[bytes]:
    return [batch[16:] for batch in batches]


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("bit", [0, 1, 2, 7, 20, 31])
@pytest.mark.parametrize("number", range(9))
def test_a_damaged_epoch_is_found_after_a_crash(number: int, bit: int, has_table: bool) -> None:
    epochs = [3, 3, 3, 3, 3, 5, 5, 5, 5, 5]
    files, log, stored = written(epochs)
    flip(files, log, stored, number, bit)
    if not has_table:
        files.remove(DIRECTORY / EPOCHS_FILE)
    log = open_log(files, ONE_SEGMENT)
    assert values(read_all(log)) == values(stored), "the records are good"
    is_in_order = sorted(epochs_of(log)) == epochs_of(log)
    if has_table or not is_in_order:
        assert log.first_damage() == number
        assert log.epochs.items() == ([(3, 0), (5, 5)] if has_table or number != 4 else [(3, 0), (5, 4)])
    assert log.corrupt_bytes == 0


def epochs_of(log: Log) -> list[int]:
    return [header_of(batch).leader_epoch for batch in read_all(log)]


def test_an_epoch_that_began_after_the_last_sync_is_believed() -> None:
    files, log, _ = written([3, 3])
    append(log, make_batch(), 4)
    append(log, make_batch(), 4)
    log = open_log(files, ONE_SEGMENT)
    assert log.first_damage() is None
    assert log.epochs.items() == [(3, 0), (4, 2)]


def test_what_was_cut_does_not_come_back_to_accuse_what_took_its_place() -> None:
    files, log, _ = written([3, 3, 5, 5])
    log.truncate(1)
    for _ in range(4):
        append(log, make_batch(), 6)
    log = open_log(files, ONE_SEGMENT)
    assert log.first_damage() is None
    assert log.epochs.items() == [(3, 0), (6, 1)]


def test_a_disk_that_was_full_when_a_log_was_cut_does_not_leave_the_old_epochs() -> None:
    files, log, _ = written([3, 3, 5, 5])
    files.capacity_bytes = 0
    log.truncate(1)
    files.capacity_bytes = None
    for _ in range(4):
        append(log, make_batch(), 6)
    log = open_log(files, ONE_SEGMENT)
    assert log.first_damage() is None
    assert log.epochs.items() == [(3, 0), (6, 1)]


@pytest.mark.parametrize("bit", [0, 1, 9])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_damaged_epoch_of_a_sealed_segment_is_found_by_reading_it(bit: int, is_clean: bool) -> None:
    epochs = [3] * 20 + [5] * 30
    files, log, stored = written(epochs, SMALL)
    if is_clean:
        log.close()
    for number in (0, 7, 19, 20, 30):
        flip(files, log, stored, number, bit)
        log = open_log(files)
        for segment in log.segments:
            position = 0
            while position < segment.size:
                position = segment.verify_part(position, 300)
        assert log.first_damage() == number
        assert values(read_all(log)) == values(stored)
        assert log.epochs.items() == [(3, 0), (5, 20)]
        flip(files, log, stored, number, bit)


def test_the_only_copy_is_dated_anew() -> None:
    files, log, stored = written([3, 3, 3, 5, 5, 5])
    flip(files, log, stored, 1, 4)
    flip(files, log, stored, 3, 30)
    log = open_log(files, ONE_SEGMENT)
    assert log.first_damage() == 1
    for segment in log.segments:
        redate(segment, log.epochs)
    assert log.first_damage() is None
    assert read_all(log) == stored
    log = open_log(files, ONE_SEGMENT)
    assert log.first_damage() is None
    assert read_all(log) == stored
