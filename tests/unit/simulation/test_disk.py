"""Simulated disks: a kill loses nothing, a power cut what was not synced, and the dead write nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from penstock.storage.files import read_file
from penstock.testing.disk import SimulatedCommit, SimulatedDisk
from penstock.testing.files import Crash
from penstock.testing.loop import simulated_loop

PATH = Path("/data/file")


def written(disk: SimulatedDisk, data: bytes, *, is_synced: bool) -> None:
    disk.files.make_directory(PATH.parent)
    file = disk.files.open(PATH, create=True)
    file.write(data)
    if is_synced:
        file.sync()
        disk.files.sync_directory(PATH.parent)


def test_a_killed_process_leaves_what_it_wrote():
    disk = SimulatedDisk(Random(1))
    written(disk, b"data", is_synced=False)
    disk.survive(keeps_unsynced=True)
    assert read_file(disk.files, PATH) == b"data"


def test_a_power_cut_keeps_what_was_synced_and_loses_the_rest_for_some_seed():
    left = set()
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        written(disk, b"data", is_synced=True)
        disk.files.open(PATH).write(b"more")
        disk.survive(keeps_unsynced=False)
        left.add(read_file(disk.files, PATH))
    assert {b"data", b"datamore"} <= left
    assert all(data is not None and data.startswith(b"data") for data in left)


def test_what_a_dead_process_has_open_writes_nothing():
    disk = SimulatedDisk(Random(1))
    written(disk, b"data", is_synced=True)
    file = disk.files.open(PATH)
    disk.survive(keeps_unsynced=True)
    with pytest.raises(Crash):
        file.write(b"from the grave")
    assert read_file(disk.files, PATH) == b"data"


def test_a_lock_ends_with_its_process():
    disk = SimulatedDisk(Random(1))
    assert disk.files.lock(PATH) is not None
    assert disk.files.lock(PATH) is None
    disk.survive(keeps_unsynced=True)
    assert disk.files.lock(PATH) is not None


class CountedLog:
    def __init__(self) -> None:
        self.syncs = 0

    def sync(self) -> int:
        self.syncs += 1
        return 0


def test_a_request_during_a_sync_has_the_log_synced_again():
    async def program() -> tuple[int, int]:
        synced = []
        commit = SimulatedCommit(lambda log, _: synced.append(log), Random(1), SimulatedDisk(Random(1)).spindle)
        log = CountedLog()
        for _ in range(5):
            commit.request(log)
        await asyncio.sleep(1)
        return log.syncs, len(synced)

    with simulated_loop(Random(1)) as loop:
        assert loop.run_until_complete(program()) == (2, 2)


def test_waiting_does_what_was_planned_at_once():
    async def program() -> int:
        commit = SimulatedCommit(lambda *_: None, Random(1), SimulatedDisk(Random(1)).spindle)
        log = CountedLog()
        commit.request(log)
        commit.wait(log)
        syncs = log.syncs
        await asyncio.sleep(1)
        assert log.syncs == syncs
        return syncs

    with simulated_loop(Random(1)) as loop:
        assert loop.run_until_complete(program()) == 1
