"""A crash at every single step of a workload, with several ways of losing what was not synced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from tests.unit.storage.samples import (
    COMPACTED,
    DIRECTORY,
    SMALL,
    append,
    fill,
    make_batch,
    open_log,
    read_all,
)
from tests.unit.storage.story import EXPIRING, RETAINING, Story

from penstock.records import decode_records, parse_header
from penstock.storage.compaction import compact
from penstock.storage.config import LogConfig
from penstock.storage.log import Log
from penstock.storage.segment import log_path
from penstock.testing.files import Crash, MemoryFiles

Workload = Callable[[Story], None]
RUNS = 500


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("penstock.storage")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


def appends_and_rolls(story: Story) -> None:
    story.open()
    for batches in (3, 5, 1, 8):
        story.append(batches)
        story.sync()
    story.append(6)
    story.live.roll()
    story.append(1)
    story.sync()
    story.append(2)


def restarts(story: Story) -> None:
    for batches in (4, 0, 7):
        story.open()
        story.append(batches)
        story.close()
    story.open()
    story.append(5)
    story.live.roll()
    story.append(5)
    story.sync()
    story.append(3)
    story.close()


def trims(story: Story) -> None:
    story.open()
    story.append(12)
    story.sync()
    story.trim(4)
    story.append(4)
    story.trim(20)
    story.sync()
    story.append(3)
    story.trim(story.live.end_offset)
    story.append(3)
    story.sync()
    story.trim(story.live.end_offset)
    story.close()
    story.open()
    story.append(2)
    story.sync()


def retention(story: Story) -> None:
    story.open()
    for _ in range(4):
        story.append(8)
        story.sync()
        story.expire()
    story.append(10)
    story.expire()
    story.close()
    story.open()
    story.append(3)
    story.sync()


def everything_expires(story: Story) -> None:
    story.open()
    for _ in range(3):
        story.append(4)
        story.sync()
        story.expire()
    story.append(1)
    story.sync()


def truncations(story: Story) -> None:
    story.open()
    story.append(15)
    story.sync()
    story.truncate(story.live.end_offset - 5)
    story.append(5)
    story.sync()
    story.close()
    story.open()
    story.truncate(7)
    story.append(9)
    story.sync()
    story.truncate(0)
    story.append(2)
    story.sync()


WORKLOADS: list[tuple[Workload, LogConfig]] = [
    (appends_and_rolls, SMALL),
    (restarts, SMALL),
    (trims, SMALL),
    (retention, RETAINING),
    (everything_expires, EXPIRING),
    (truncations, SMALL),
]


def steps_of(workload: Workload, config: LogConfig) -> int:
    story = Story(MemoryFiles(), seed=1, config=config)
    workload(story)
    return story.files.steps


@pytest.mark.parametrize("runs", [RUNS // 4, pytest.param(RUNS, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("workload", "config"), WORKLOADS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_power_cut_at_any_step_loses_nothing_acked(workload: Workload, config: LogConfig, runs: int) -> None:
    steps = steps_of(workload, config)
    seeds = 1 + runs // steps  # what a crash at one step leaves is one of many things
    for step in range(1, steps + 1):
        for seed in range(seeds * step, seeds * (step + 1)):
            crash_and_check(workload, config, step, seed)


def crash_and_check(workload: Workload, config: LogConfig, step: int, seed: int) -> None:
    files = MemoryFiles(seed=seed)
    files.crash_at = step
    story = Story(files, seed=1, config=config)
    try:
        workload(story)
    except Crash as crash:
        happened = f"{workload.__name__}: step {step} ({crash}), seed {seed}"
    else:
        return
    try:
        files.crash()
        crash_while_recovering(story, seed)
        survived = story.surviving()
        story.open()
        story.check()
        served = set(read_all(story.live))
        for batch in survived:
            header = parse_header(batch)
            is_gone = header.next_offset <= story.live.start_offset or workload is truncations
            assert batch in served or is_gone, f"{header.base_offset} was whole on disk and is not served"
        story.go_on()
    except AssertionError as error:
        raise AssertionError(f"{error} after {happened}") from error


def crash_while_recovering(story: Story, seed: int) -> None:
    """Recovery is a workload too: stop it at a few steps before letting it finish."""
    for later in range(1, 1 + seed % 5):
        story.files.crash_at = story.files.steps + later
        try:
            story.open()
        except Crash:
            story.files.crash()
        else:
            story.files.crash_at = None


@pytest.mark.parametrize(("workload", "config"), WORKLOADS, ids=lambda value: getattr(value, "__name__", ""))
def test_kill_9_at_any_step_loses_no_whole_batch(workload: Workload, config: LogConfig) -> None:
    """The process dies, the kernel lives: everything written is there. What the log then calls durable must be that."""
    for step in range(1, steps_of(workload, config) + 1):
        files = MemoryFiles(seed=step)
        files.crash_at = step
        story = Story(files, seed=1, config=config)
        try:
            workload(story)
        except Crash:
            files.crash(keeps_unsynced=True)
        story.open()
        story.check()
        story.acked_end = story.live.durable_offset
        story.current = read_all(story.live)
        files.crash()
        story.open()
        story.check()
        story.go_on()


def test_an_index_from_before_the_crash_is_not_taken_for_a_new_one() -> None:
    """The log is cut below the size that an old index states, and grows to exactly that size again."""
    files = MemoryFiles()
    log = open_log(files)
    stored = fill(log, 9)
    append(log, victim := make_batch(value=b"8 bytes."))
    log.close()
    path = log_path(DIRECTORY, 0)
    files.flip_bit(path, files.open(path).size - 1)
    files.open(path).write(b"torn")
    log = open_log(files)
    assert log.end_offset == 9
    other = make_batch(2, key=None, value=b"22")
    assert len(other) == len(victim)
    append(log, other)
    log.roll()
    last = make_batch()
    append(log, last)
    files.crash(keeps_unsynced=True)
    log = open_log(files)
    assert read_all(log) == [*stored, bytes(other), bytes(last)]
    found = log.read(10, 1, log.end_offset)
    assert found is not None
    assert found.read() == bytes(other)


def test_epochs_of_a_log_that_was_cut_come_from_its_batches() -> None:
    """The file of epochs still tells of a leader whose batches were truncated."""
    files = MemoryFiles()
    log = open_log(files)
    for epoch in (1, 1, 5, 5):
        append(log, make_batch(), epoch)
    log.close()
    log = open_log(files)
    log.truncate(2)
    append(log, make_batch(), 3)
    append(log, make_batch(), 7)
    files.crash(keeps_unsynced=True)
    assert open_log(files).epochs.items() == [(1, 0), (3, 2), (7, 3)]


def test_a_crash_at_any_step_of_compaction_leaves_the_old_or_the_new_records() -> None:
    step, is_done = 0, False
    while not is_done:
        step += 1
        for seed in range(2):
            is_done = crash_compaction(step, seed)
    assert step > 60


def crash_compaction(step: int, seed: int) -> bool:
    """Crash at a step counted from the first pass on; whether the workload was through before."""
    files = MemoryFiles(seed=seed + 10 * step)
    log = open_log(files, COMPACTED)
    written: dict[int, bytes | None] = {}
    fill_keys(log, written, 60)
    files.crash_at = files.steps + step
    try:
        compact(log, now_ms=10_000)
        fill_keys(log, written, 20)
        compact(log, now_ms=20_000)
        is_done = True
    except Crash:
        is_done = False
    acked = log.durable_offset
    files.crash()
    log = open_log(files, COMPACTED)
    found = {record.offset: record.value for batch in read_all(log) for record in decode_records(batch)}
    assert all(written[offset] == value for offset, value in found.items())
    last = {offset % KEYS: offset for offset in sorted(written) if offset < acked}
    for offset in last.values():
        assert offset in found or written[offset] is None or any(later % KEYS == offset % KEYS for later in found)
        newest = max((at for at in found if at % KEYS == offset % KEYS), default=None)
        assert newest is None or newest >= offset, "an older value never comes back as the last one"
    for segment, following in pairwise(log.segments):
        assert segment.next_offset <= following.base_offset, "no part of the log is there twice"
    assert log.end_offset >= acked
    log.sync()
    compact(log, now_ms=30_000)
    again = {record.offset for batch in read_all(log) for record in decode_records(batch)}
    assert again <= set(found)
    names = [entry.name for entry in files.entries(DIRECTORY)]
    assert not [name for name in names if name.endswith((".swap", ".cleaned", ".tmp"))]
    return is_done


KEYS = 7


def fill_keys(log: Log, written: dict[int, bytes | None], count: int) -> None:
    for _ in range(count):
        offset = log.end_offset
        value = None if offset % 11 == 0 else b"value %d" % offset
        written[offset] = value
        append(log, make_batch(key=b"key %d" % (offset % KEYS), value=value, producer_id=1, sequence=offset))
    log.roll()
    log.sync()
