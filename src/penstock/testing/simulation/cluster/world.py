"""What a simulated cluster lives in: time, chance, a network, and the record of what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, Final

from penstock.testing.files import Crash
from penstock.testing.simulation.cluster.history import History
from penstock.testing.simulation.cluster.loop import SimulatedLoop
from penstock.testing.simulation.cluster.network import SimulatedNetwork
from penstock.testing.simulation.cluster.node import SimulatedNode

_LOOK_EVERY_S: Final = 0.02


class World:
    """One history, from its seed. What went wrong is in ``history.violations``."""

    nodes: Mapping[int, SimulatedNode[Any]]

    def __init__(self, seed: int, loop: SimulatedLoop, *, is_told: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.loop = loop
        self.history = History()
        if is_told:
            self.history.lines = []
        self.network = SimulatedNetwork(loop, Random(self.random.getrandbits(64)))
        self.network.on_frame = self.history.carry
        self.is_over = False

    async def run(self) -> None:
        """Live through it, until its end or the first violation."""
        try:
            await self.live()
        except _Stopped:
            return

    async def live(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        """Have the oracles look; called again and again."""

    def can_lose(self, node: SimulatedNode[Any]) -> bool:
        """Whether a node's disk may be lost now: only where others have everything that was promised."""
        del node
        return False

    # -- waiting and watching -----------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Let a moment pass, and look at everything."""
        await asyncio.sleep(_LOOK_EVERY_S)
        self.history.now_s = self.loop.time()
        self.check()
        for life, message, error in self.loop.failures:
            if not isinstance(error, Crash):
                self.history.violate("no bug is met", f"{life}: {message}: {error!r}")
        self.loop.failures.clear()
        if self.history.violations:
            raise _Stopped

    async def bounded(self, work: Awaitable[None], limit_s: float, complaint: str) -> None:
        """Wait for work that has to be done by a time."""
        task = asyncio.ensure_future(work)
        until_s = self.loop.time() + limit_s
        while not task.done():
            await self.look()
            if self.loop.time() > until_s:
                self.fail(complaint)
        await task

    async def until(self, why_not: Callable[[], str], limit_s: float, complaint: str) -> None:
        """Wait until there is no reason left not to go on."""
        until_s = self.loop.time() + limit_s
        while why := why_not():
            await self.look()
            if self.loop.time() > until_s:
                self.fail(f"{complaint}: {why}")

    def fail(self, complaint: str) -> None:
        self.history.violate("the cluster heals", complaint)
        raise _Stopped

    def not_ready(self) -> str:
        return ", ".join(repr(node) for node in self.nodes.values() if not node.is_ready)


class _Stopped(Exception):
    """A violation was found; there is no point in going on."""
