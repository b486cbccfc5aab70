"""What a simulated cluster lives in: time, chance, a network, the record of what happened; and its nodes.

A node is a machine with a disk and a process that dies and is started again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, Final, Generic, TypeVar

from penstock.errors import PeerUnavailable, PenstockError
from penstock.testing.clock import SimulatedClock
from penstock.testing.disk import SimulatedDisk
from penstock.testing.files import Crash
from penstock.testing.loop import Life, SimulatedLoop
from sim.cluster.history import History
from sim.cluster.network import SimulatedNetwork
from sim.cluster.peers import SimulatedPeers

PORT: Final = 9094
_START_AGAIN_S: Final = 1.0
_STOP_MAX_S: Final = 20.0
ProcessT = TypeVar("ProcessT")
ResultT = TypeVar("ResultT")


class Unreachable(Exception):
    """The node was not there, or died before it answered: whether it did what it was asked to is not known."""


def host_of(node_id: int) -> str:
    return f"node-{node_id}"


class SimulatedNode(ABC, Generic[ProcessT]):
    """One node through all its lives. What its process is made of is for others to say."""

    def __init__(self, world: World, node_id: int) -> None:
        self._world = world
        self.id = node_id
        self.random = Random(world.random.getrandbits(64))
        self.disk = SimulatedDisk(self.random)
        self.clock = SimulatedClock(world.loop)
        self.life = Life(f"node {node_id} before its first life")
        self.life.end()
        self.lives = 0
        self.process: ProcessT | None = None
        self.peers: SimulatedPeers | None = None
        self.is_ready = False
        self.is_stopping = False
        self._asked: dict[asyncio.Future[Any], None] = {}

    def __repr__(self) -> str:
        state = "ready" if self.is_ready else "up" if self.is_up else "down"
        return f"<node {self.id} {state} in life {self.lives}>"

    @property
    def is_up(self) -> bool:
        return not self.life.is_over

    # -- lives --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process, as an operator would."""
        if self.is_up:
            return
        self.lives += 1
        self.life = Life(f"node {self.id} life {self.lives}")
        self.is_ready = self.is_stopping = False
        self.disk.files.on_crash = self._on_crash_point
        self.life.run(asyncio.get_running_loop().create_task, self._live(self.life))

    async def _live(self, life: Life) -> None:
        world = self._world
        try:
            peers = SimulatedPeers(world.network, life, self.id, (host_of(self.id), PORT), self.clock)
            self.peers = peers
            await peers.start()
            await self.begin(peers)
        except PenstockError as error:
            # A process that cannot start says why and ends; somebody starts it again later.
            world.history.note(f"node {self.id} cannot start: {error.message}")
            self.kill()
            world.network.plan(_START_AGAIN_S, self.start)
            return
        self.is_ready = True
        world.history.note(f"node {self.id} is ready")

    @abstractmethod
    async def begin(self, peers: SimulatedPeers) -> None:
        """Make the process and bring it to where it serves."""

    @abstractmethod
    async def end(self, process: ProcessT) -> None:
        """Have the process stop in good order."""

    def last_look(self, process: ProcessT) -> None:
        """The process is about to die: note what nobody can ask for afterwards."""

    def _on_crash_point(self) -> None:
        """The disk stopped in the middle of a step: the power is out."""
        self._world.history.count_fault("crash point", f"node {self.id} at {self.disk.files.last_step}")
        self._die(keeps_unsynced=False, is_silent=True)

    def kill(self) -> None:
        """As ``kill -9``: what was written stays with the kernel."""
        self._die(keeps_unsynced=True, is_silent=False)

    def cut_power(self) -> None:
        self._die(keeps_unsynced=False, is_silent=True)

    def wipe(self) -> None:
        """The disk is gone, and the process with it; the next one finds an empty disk."""
        self.cut_power()
        self.disk.wipe()

    def _die(self, *, keeps_unsynced: bool, is_silent: bool) -> None:
        if not self.is_up:
            return
        if self.process is not None:
            self.last_look(self.process)
        self.life.end()
        if self.peers is not None:
            self._world.network.leave(self.peers, is_silent=is_silent)
        self._world.loop.keep((self.process, self.peers, self.disk.files, self.life))
        self.process = self.peers = None
        self.is_ready = False
        self.disk.survive(keeps_unsynced=keeps_unsynced)
        asked, self._asked = self._asked, {}
        for future in asked:
            if not future.done():
                future.set_exception(Unreachable(f"node {self.id} died"))

    async def stop(self) -> None:
        """End in good order, as by SIGTERM, with an impatient supervisor behind."""
        life, process, peers = self.life, self.process, self.peers
        if not self.is_ready or process is None or peers is None or self.is_stopping:
            self.kill()
            return
        self.is_stopping = True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked[done] = None  # who dies on the way is done as well
        life.run(asyncio.get_running_loop().create_task, self._end(process, peers, done))
        try:
            async with asyncio.timeout(_STOP_MAX_S):
                await asyncio.shield(done)
        except TimeoutError:
            self._world.history.note(f"node {self.id} did not stop in time")
        except Unreachable:
            return
        finally:
            self._asked.pop(done, None)
        if self.life is life:
            self.kill()

    async def _end(self, process: ProcessT, peers: SimulatedPeers, done: asyncio.Future[None]) -> None:
        try:
            await self.end(process)
            await peers.stop()
        except PenstockError as error:
            self._world.history.note(f"node {self.id} cannot stop in good order: {error.message}")
        finally:
            if not done.done():
                done.set_result(None)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def ask(self, work: Callable[[ProcessT], Awaitable[ResultT]]) -> ResultT:
        """Have the node do something for a client, with the network in between."""
        network = self._world.network
        await asyncio.sleep(network.delay())
        process = self.process
        if process is None or not self.is_ready:
            raise Unreachable(f"node {self.id} is down")
        answer: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._asked[answer] = None
        self.life.run(asyncio.get_running_loop().create_task, _answer(answer, work, process))
        try:
            result = await answer
        finally:
            self._asked.pop(answer, None)
        await asyncio.sleep(network.delay())
        return result


async def _answer(
    answer: asyncio.Future[ResultT], work: Callable[[ProcessT], Awaitable[ResultT]], process: ProcessT
) -> None:
    try:
        result = await work(process)
    except asyncio.CancelledError:
        if not answer.done():
            answer.set_exception(PeerUnavailable("the node is stopping"))
        raise
    except Exception as error:
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(result)


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
