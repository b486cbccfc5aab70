"""The quorum's real driver and store, stopped at every step of the disk: what was said is always kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from sim.cluster.entropy import seeded_entropy
from sim.driver_mutants import DRIVER
from sim.driver_stories import STORIES
from sim.driver_swarm import run_driver_seed
from sim.drivers import Drivers
from sim.planting import Mutant, hunt
from tests.unit.quorum.samples import DIRECTORY, TRIO, entries, open_store, work

from penstock.consensus.quorum.store import QuorumStore
from penstock.testing.files import MemoryFiles
from penstock.testing.loop import simulated_loop


def formed(files: MemoryFiles) -> QuorumStore:
    store = open_store(files)
    store.form(TRIO)
    return store


# -- the store ---------------------------------------------------------------------------------------------------------


def test_damage_to_what_was_acknowledged_is_never_taken_for_that() -> None:
    files = MemoryFiles()
    store = formed(files)
    store.write([work(*entries(1, 20), term=1)])
    file = files.open(DIRECTORY / f"{0:020}.log")
    files.flip_bit(file.path, file.size // 2)
    with pytest.raises(Exception, match="cannot be trusted"):
        open_store(files)


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_a_story_of_the_disk_ends_well(story: Callable[[], None]) -> None:
    story()


# -- the driver --------------------------------------------------------------------------------------------------------


async def _work_and_crash(drivers: Drivers, victim: int, step: int) -> bool:
    """A few proposals, with one node losing power at a step; whether it came to that."""
    for node in drivers.nodes.values():
        node.start()
    node = drivers.nodes[victim]
    node.crash_within(step)
    while len(drivers.acked) < 12:
        await asyncio.sleep(0.02)
        await drivers.propose()
    has_crashed = node.lives > 1 or node.quorum is None
    await drivers.recover()
    return has_crashed


def test_power_lost_at_any_step_breaks_no_promise() -> None:
    crashed = 0
    for step in range(1, 70, 6):
        random = Random(f"step {step}")
        with seeded_entropy(step), simulated_loop(random) as loop:
            drivers = Drivers(loop, step, 3)
            drivers.snapshot_every = 5
            crashed += loop.run_until_complete(_work_and_crash(drivers, 1 + step % 3, step))
    assert crashed > 7


@pytest.mark.parametrize("seed", range(3))
def test_no_oracle_is_proved_wrong(seed: int) -> None:
    assert run_driver_seed(seed).violation is None


def test_a_history_is_its_seed() -> None:
    assert run_driver_seed(1) == run_driver_seed(1)


@pytest.mark.parametrize(
    "mutant",
    [mutant if at < 2 else pytest.param(mutant, marks=pytest.mark.soak) for at, mutant in enumerate(DRIVER)],
    ids=[mutant.name for mutant in DRIVER],
)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    names = (
        "sim.driver_stories:STORIES",
        "sim.driver_swarm:run_driver_seed",
    )
    assert hunt(mutant, range(4, 7), *names).is_caught
