"""Virtual time for tests of whole brokers: nothing that sleeps or waits takes any, and the same happens every time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from penstock.broker.surroundings import Surroundings
from penstock.network.port import Peers
from penstock.network.tcp import TcpPeers
from penstock.testing.clock import SimulatedClock
from penstock.testing.disk import SimulatedCommit, Spindle
from penstock.testing.files import MemoryFiles
from penstock.testing.loop import simulated_loop

_STORY_S: Final = 600.0
_SEED: Final = 7


class ClockWithHands(SimulatedClock):
    """The time of the loop, with somebody at its hands: ``skew_ms`` is how far they were moved."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())


def surroundings(files: MemoryFiles, *, node_id: int = 1, peers: Peers | None = None) -> Surroundings:
    """What a broker of the running loop stands on; without ``peers`` it is alone."""
    clock, random = ClockWithHands(), Random(node_id)
    return Surroundings(
        peers=peers or TcpPeers(node_id, host="", port=None, token=None, clock=clock),
        files=files,
        clock=clock,
        random=random,
        open_commit=lambda on_synced, **_: SimulatedCommit(on_synced, random, Spindle()),  # type: ignore[arg-type, return-value]
        boot_id="one life of the machine",
    )


def run(*stories: Callable[[], Coroutine[Any, Any, None]], begin_s: float = 0.0) -> float:
    """Run a test's story, or several one after the other, of which each leaves behind whatever still runs.

    What comes back is the time at the end, at which another run can begin.
    """

    async def bounded(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with asyncio.timeout(_STORY_S):
            await story()

    now_s = begin_s
    for life, story in enumerate(stories):
        with simulated_loop(Random(_SEED + life)) as loop:
            loop.leap(now_s)
            loop.run_until_complete(bounded(story))
            assert not loop.failures, loop.failures
            now_s = loop.time()
    return now_s


def run_in_real_time(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """For stories with threads or sockets of their own."""

    async def bounded() -> None:
        async with asyncio.timeout(90):
            await story()

    asyncio.run(bounded())
