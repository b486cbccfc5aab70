"""What a fault is, and what it works on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bench.chaos.cluster import Cluster, Node
from bench.chaos.network import Network
from bench.chaos.watch import Watch


class NothingToHit(Exception):
    """No node is left that this fault could hit now."""


@dataclass
class Arena:
    """The cluster, what is known of it, and the nodes that some fault has in its hands at the moment."""

    cluster: Cluster
    watch: Watch
    meanwhile: Callable[[], None]
    """Called while a long fault waits, so that clients are kept alive."""
    taken: set[int] = field(default_factory=set)
    damaged: set[int] = field(default_factory=set)
    """Nodes whose files were damaged: such a one may refuse to start, and then an operator gives it an empty disk."""

    @property
    def network(self) -> Network:
        assert self.cluster.network is not None, "the machine has no network of its own"
        return self.cluster.network

    @property
    def numbers(self) -> list[int]:
        return sorted(self.cluster.nodes)

    def free(self) -> list[Node]:
        """Nodes that run and are in nobody's hands."""
        found = [node for node in self.cluster.running if node.number not in self.taken]
        if not found:
            raise NothingToHit("every node is down or in trouble already")
        return found

    def take(self, nodes: list[Node]) -> list[Node]:
        self.taken |= {node.number for node in nodes}
        return nodes

    def give_back(self, nodes: list[Node]) -> None:
        self.taken -= {node.number for node in nodes}

    def pick(self, chance: random.Random) -> Node:
        return chance.choice(self.free())

    def pick_leader(self, chance: random.Random) -> Node:
        """A node that leads a partition, else any."""
        view = self.watch.latest
        leaders = set(view.leaders.values()) if view is not None else set()
        return chance.choice([node for node in self.free() if node.number in leaders] or self.free())

    def pick_controller(self, chance: random.Random) -> Node:
        view = self.watch.latest
        found = [node for node in self.free() if view is not None and node.number == view.controller]
        return found[0] if found else self.pick(chance)

    def pick_majority(self, chance: random.Random) -> list[Node]:
        free = self.free()
        return chance.sample(free, min(len(free), len(self.cluster.nodes) // 2 + 1))

    def relaunch(self, nodes: list[Node]) -> None:
        """Start whichever of these nodes does not run."""
        for node in nodes:
            if not node.is_running and node.number in self.cluster.nodes:
                self.cluster.launch(node)


class Fault(Protocol):
    """Something bad that can be undone."""

    def inject(self) -> str:
        """Do it; what was done, for the report."""

    def heal(self) -> None:
        """Undo it; nodes that are started again may need time to be whole."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault."""

    name: str
    make: Callable[[Arena, random.Random], Fault]
    hold_s: tuple[float, float] = (3.0, 10.0)
    needs: str = ""
    """`network`, `disks`, `fake time`, `cluster commands` or nothing."""
    wants_whole: bool = False
    """Only when every replica is in step before it: it takes away a copy, or is a change that an operator plans."""


@dataclass
class Simple:
    """A fault made of two functions."""

    do: Callable[[], str]
    undo: Callable[[], None]

    def inject(self) -> str:
        return self.do()

    def heal(self) -> None:
        self.undo()
