"""Faults of processes: killed, paused, restarted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.chaos.cluster import ClusterError, Node
from bench.chaos.faults.fault import Arena, Fault, Kind

Choice = Callable[[Arena, random.Random], list[Node]]


@dataclass
class Kill:
    """kill -9, and a new start later."""

    arena: Arena
    chance: random.Random
    choose: Choice
    nodes: list[Node] = field(default_factory=list)

    def inject(self) -> str:
        self.nodes = self.arena.take(self.choose(self.arena, self.chance))
        for node in self.nodes:
            node.kill()
        return ", ".join(map(str, self.nodes))

    def heal(self) -> None:
        self.arena.relaunch(self.nodes)
        self.arena.give_back(self.nodes)


@dataclass
class Pause:
    """SIGSTOP, and SIGCONT later: what a node believed before may no longer be true."""

    arena: Arena
    chance: random.Random
    choose: Choice
    nodes: list[Node] = field(default_factory=list)

    def inject(self) -> str:
        self.nodes = self.arena.take(self.choose(self.arena, self.chance))
        for node in self.nodes:
            node.pause()
        return ", ".join(map(str, self.nodes))

    def heal(self) -> None:
        for node in self.nodes:
            node.resume()
        self.arena.give_back(self.nodes)


@dataclass
class RollingRestart:
    """SIGTERM to one node after the other; the next one's turn comes when all is in step again."""

    arena: Arena
    chance: random.Random

    def inject(self) -> str:
        nodes = self.arena.free()
        self.chance.shuffle(nodes)
        for node in nodes:
            restart_in_good_order(self.arena, node)
        return ", ".join(map(str, nodes))

    def heal(self) -> None:
        self.arena.relaunch(list(self.arena.cluster.nodes.values()))


def restart_in_good_order(arena: Arena, node: Node) -> None:
    node.terminate()
    arena.meanwhile()
    arena.cluster.start(node)
    if not arena.watch.wait_until_whole(60.0, arena.meanwhile):
        raise ClusterError(f"the cluster did not become whole after a restart of {node}")


def _one(arena: Arena, chance: random.Random) -> list[Node]:
    return [arena.pick(chance)]


def _leader(arena: Arena, chance: random.Random) -> list[Node]:
    return [arena.pick_leader(chance)]


def _controller(arena: Arena, chance: random.Random) -> list[Node]:
    return [arena.pick_controller(chance)]


def _majority(arena: Arena, chance: random.Random) -> list[Node]:
    return arena.pick_majority(chance)


def _all(arena: Arena, chance: random.Random) -> list[Node]:
    del chance
    return arena.free()


def _kill(choose: Choice) -> Callable[[Arena, random.Random], Fault]:
    return lambda arena, chance: Kill(arena, chance, choose)


def _pause(choose: Choice) -> Callable[[Arena, random.Random], Fault]:
    return lambda arena, chance: Pause(arena, chance, choose)


KINDS = [
    Kind("kill-node", _kill(_one), (1, 8)),
    Kind("kill-leader", _kill(_leader), (1, 8)),
    Kind("kill-controller", _kill(_controller), (1, 8)),
    Kind("kill-majority", _kill(_majority), (2, 8)),
    Kind("kill-all", _kill(_all), (1, 4)),
    Kind("pause-node", _pause(_one), (1, 10)),
    Kind("pause-leader", _pause(_leader), (1, 10)),
    Kind("pause-all", _pause(_all), (1, 6)),
    Kind("rolling-restart", RollingRestart, (0, 0), wants_whole=True),
]
