"""A swarm for the quorum's real drivers: processes die at any step of their disk, and all else goes wrong as well."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from penstock.testing.loop import SimulatedLoop, simulated_loop
from sim.cluster.entropy import seeded_entropy
from sim.drivers import DriverNode, Drivers
from sim.network import Weather
from sim.result import Result

FAULTS: Final = ("kill", "power", "step", "all", "split", "full", "transfer", "loss", "late", "slow disk")
_DURATION_S: Final = 8.0
_EVENTS_MAX: Final = 2_000_000


def run_driver_seed(seed: int, *, is_kept: bool = False) -> Result:
    """One history, and what it came to."""
    random = Random(f"driver swarm {seed}")
    with _no_collections(), seeded_entropy(seed), simulated_loop(random) as loop:
        loop.events_max = _EVENTS_MAX
        swarm = DriverSwarm(loop, seed, random, is_kept=is_kept)
        drivers = swarm.drivers
        violation = None
        try:
            loop.run_until_complete(swarm.run())
        except Exception as error:  # whatever broke, it was not to break
            violation = f"{type(error).__name__}: {error}"
            drivers.note(f"VIOLATION {violation}")
        duration_ms = drivers.now_ms
    return Result(
        kind="quorum",
        seed=seed,
        duration_ms=duration_ms,
        events=loop.events_run,
        operations=drivers.operations,
        faults=dict(drivers.trace.faults),
        trace=drivers.trace.digest,
        violation=violation,
        history=tuple(drivers.trace.lines),
    )


@contextmanager
def _no_collections() -> Iterator[None]:
    """Or one would end the remains of dead processes, at a moment that nobody can repeat."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()


class DriverSwarm:
    """Work to do, and faults to bear."""

    def __init__(self, loop: SimulatedLoop, seed: int, random: Random, *, is_kept: bool) -> None:
        self._random = random
        self.drivers = drivers = Drivers(loop, seed, 3, is_kept=is_kept)
        self._kinds = [kind for kind in FAULTS if random.random() < 0.5]
        drivers.network.weather = Weather(
            delay_max_ms=random.choice((2, 10, 50)),
            lost=0.1 if "loss" in self._kinds else 0.0,
            late=0.05 if "late" in self._kinds else 0.0,
        )
        if "slow disk" in self._kinds:
            loop.thread_delay_max_s = 0.1

    async def run(self) -> None:
        drivers, random = self.drivers, self._random
        for node in drivers.nodes.values():
            node.start()
        clients = [asyncio.ensure_future(self._work()) for _ in range(3)]
        while drivers.loop.time() < _DURATION_S:
            await asyncio.sleep(random.random() * 0.3)
            drivers.raise_failures()
            if self._kinds and random.random() < 0.5:
                await self._disturb(random.choice(self._kinds))
        for client in clients:
            await client
        await drivers.recover()

    async def _work(self) -> None:
        drivers, random = self.drivers, self._random
        while drivers.loop.time() < _DURATION_S:
            await asyncio.sleep(random.random() * 0.05)
            await (drivers.read() if random.random() < 0.1 else drivers.propose())

    async def _disturb(self, kind: str) -> None:
        drivers, random = self.drivers, self._random
        node = random.choice(list(drivers.nodes.values()))
        about = str(node)
        match kind:
            case "kill" | "power" if node.quorum is None:
                node.start()
            case "kill" | "power":
                node.die(is_power_cut=kind == "power")
            case "step" if node.quorum is not None:
                node.crash_within(random.randrange(1, 30))
            case "all":
                about = "everybody"
                for each in drivers.nodes.values():
                    each.die(is_power_cut=True)
                    drivers.plan(random.randrange(200), each.start)
            case "split":
                about = self._split(node)
            case "full":
                used = node.files.used_bytes
                node.files.capacity_bytes = None if node.files.capacity_bytes else used + random.randrange(3_000)
            case "transfer":
                await drivers.transfer(node.id)
            case _:
                return  # it goes on all the time
        drivers.trace.note_fault(drivers.now_ms, kind, about)

    def _split(self, node: DriverNode) -> str:
        self.drivers.network.heal()
        if self._random.random() < 0.4:
            return "healed"
        self.drivers.network.split({node.id}, set(self.drivers.nodes) - {node.id})
        return f"{node} from the others"
