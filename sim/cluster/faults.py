"""A swarm of faults: each seed takes some kinds of all there are, so that no kind hides what another would show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.testing.loop import Life
from sim.cluster.world import SimulatedNode

if TYPE_CHECKING:
    from sim.cluster.world import World

_GAP_MAX_S: Final = 1.5
_SHARE: Final = 0.3  # of all kinds in one seed

Node = SimulatedNode[Any]
Act = Callable[[Any, Node], str]  # does it, and says to whom; nothing, if it could not be done


class Faults:
    """Disturbs a simulation for a while, and sets everything right at the end."""

    def __init__(self, world: World, kinds: Mapping[str, Act] | None = None) -> None:
        self._world = world
        self._network = world.network
        self._history = world.history
        self._acts = kinds or KINDS
        self.random = Random(world.random.getrandbits(64))
        self.kinds: list[str] = [kind for kind in self._acts if self.random.random() < _SHARE]
        self._under_way: list[asyncio.Task[None]] = []

    async def run(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._set_weather()
        while self.kinds and loop.time() < until_s:
            await asyncio.sleep(self.random.random() * _GAP_MAX_S)
            kind = self.random.choice(self.kinds)
            act = self._acts[kind]
            node = self.random.choice(list(self._world.nodes.values()))
            line = act(self, node)
            if line:
                self._history.count_fault(kind, line)

    def _set_weather(self) -> None:
        weather = self._network.weather
        weather.delay_max_s = self.random.choice((0.001, 0.005, 0.05))
        if "loss" in self.kinds:
            weather.broken = self.random.choice((0.0005, 0.005))
        if "late" in self.kinds:
            weather.late = self.random.choice((0.001, 0.01))
        if "slow disk" in self.kinds:
            for node in self._world.nodes.values():
                node.disk.spindle.sync_max_s = self.random.choice((0.001, 0.05, 0.3))

    async def calm(self) -> None:
        """End every fault: all ways open, all disks well, all nodes up."""
        weather = self._network.weather
        weather.delay_max_s, weather.broken, weather.late = 0.001, 0.0, 0.0
        for node in self._world.nodes.values():
            node.disk.spindle.sync_max_s = 0.002
            node.disk.empty()
            node.disk.files.crash_at = None
            node.life.resume(self._world.loop)
        self._network.heal()
        await asyncio.gather(*self._under_way)
        for node in self._world.nodes.values():
            node.start()
        self._history.note("calm")

    # -- processes ----------------------------------------------------------------------------------------------------

    def kill(self, node: Node) -> str:
        return self._down(node, node.kill)

    def cut_power(self, node: Node) -> str:
        return self._down(node, node.cut_power)

    def _down(self, node: Node, end: Callable[[], None]) -> str:
        if not node.is_up:
            return ""
        end()
        self._start_later(node)
        return f"node {node.id}"

    def _start_later(self, node: Node) -> None:
        self._network.plan(self.random.choice((0.1, 0.5, 3.0)) * self.random.random(), node.start)

    def cut_all_power(self, _: Node) -> str:
        for node in self._world.nodes.values():
            if node.is_up:
                node.cut_power()
                self._start_later(node)
        return "everywhere"

    def crash_point(self, node: Node) -> str:
        if not node.is_ready:
            return ""
        files = node.disk.files
        files.crash_at = files.steps + self.random.randint(1, 40)
        self._network.plan(2.0, node.start)
        return f"node {node.id} at step {files.crash_at}"

    def pause(self, node: Node) -> str:
        if not node.is_up or node.life.is_paused:
            return ""
        life = node.life
        life.pause()
        self._network.plan(self.random.choice((0.3, 1.0, 4.0)) * self.random.random(), self._resume, life)
        return f"node {node.id}"

    def _resume(self, life: Life) -> None:
        life.resume(self._world.loop)
        self._network.resume()

    def restart(self, node: Node) -> str:
        """Stop in good order and start again."""
        if not node.is_ready or node.is_stopping:
            return ""
        self._under_way.append(asyncio.ensure_future(self._bounce(node)))
        return f"node {node.id}"

    async def _bounce(self, node: Node) -> None:
        await node.stop()
        await asyncio.sleep(self.random.random() * 0.5)
        node.start()

    def wipe(self, node: Node) -> str:
        """A disk is lost for good. One at a time, and only where others have everything."""
        if not node.is_up or not self._world.can_lose(node):
            return ""
        node.wipe()
        self._start_later(node)
        return f"node {node.id}"

    # -- the network --------------------------------------------------------------------------------------------------

    def halves(self, _: Node) -> str:
        ids = list(self._world.nodes)
        here = self.random.sample(ids, self.random.randrange(1, len(ids))) if len(ids) > 1 else ids
        there = [node_id for node_id in ids if node_id not in here]
        self._network.split(here, there)
        return self._heal_later(f"{here} from {there}")

    def isolate(self, node: Node) -> str:
        self._network.split([node.id], [other for other in self._world.nodes if other != node.id])
        return self._heal_later(f"node {node.id}")

    def ring(self, _: Node) -> str:
        """Everybody sees only its leaders."""
        ids = list(self._world.nodes)
        for at, one in enumerate(ids):
            for other in ids[at + 2 :]:
                if (at, other) != (0, ids[-1]) or len(ids) == 3:
                    self._network.split([one], [other])
        return self._heal_later("ring")

    def one_way(self, node: Node) -> str:
        others = [other for other in self._world.nodes if other != node.id]
        for other in self.random.sample(others, self.random.randint(1, len(others))) if others else ():
            if self.random.random() < 0.5:
                self._network.cut(node.id, other)
            else:
                self._network.cut(other, node.id)
        return self._heal_later(f"around node {node.id}")

    def _heal_later(self, line: str) -> str:
        self._network.plan(self.random.choice((0.5, 2.0, 6.0)) * self.random.random(), self._network.heal)
        return line

    # -- disks and clocks ---------------------------------------------------------------------------------------------

    def fill(self, node: Node) -> str:
        if not node.is_up:
            return ""
        node.disk.fill(self.random.randrange(2000))
        self._network.plan(self.random.random() * 3, node.disk.empty)
        return f"node {node.id}"

    def fail_syncs(self, node: Node) -> str:
        """The disk fails for a moment; what it failed at stays closed until the node is started again."""
        if not node.is_ready:
            return ""
        node.disk.files.is_failing_syncs = True
        self._network.plan(self.random.random() * 0.5, node.disk.empty)
        self._network.plan(1.0 + self.random.random() * 2, self._restart_killed, node, node.lives)
        return f"node {node.id}"

    def _restart_killed(self, node: Node, lives: int) -> None:
        if node.lives == lives:
            node.kill()
            self._start_later(node)

    def jump(self, node: Node) -> str:
        node.clock.skew_ms += self.random.choice((-60_000, -1_000, 500, 3_600_000))
        return f"node {node.id} is {node.clock.skew_ms} ms off"

    def nothing(self, _: Node) -> str:
        return ""


KINDS: Final[dict[str, Act]] = {
    "kill": Faults.kill,
    "power cut": Faults.cut_power,
    "power cut everywhere": Faults.cut_all_power,
    "crash point": Faults.crash_point,
    "pause": Faults.pause,
    "restart": Faults.restart,
    "wipe": Faults.wipe,
    "halves": Faults.halves,
    "isolate": Faults.isolate,
    "ring": Faults.ring,
    "one way": Faults.one_way,
    "loss": Faults.nothing,
    "late": Faults.nothing,
    "slow disk": Faults.nothing,
    "disk full": Faults.fill,
    "failing syncs": Faults.fail_syncs,
    "clock": Faults.jump,
}
