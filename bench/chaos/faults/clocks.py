"""Faults of clocks: a node's wall clock jumps, and jumps back. Its monotonic clock goes on as ever."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from bench.chaos.cluster import Node
from bench.chaos.faults.fault import Arena, Kind


@dataclass
class Jump:
    arena: Arena
    chance: random.Random
    nodes: list[Node] = field(default_factory=list)

    def inject(self) -> str:
        self.nodes = [self.arena.pick(self.chance)]
        offset_s = self.chance.choice([-3600, -60, -5, 5, 60, 3600])
        for node in self.nodes:
            node.set_clock(offset_s)
        return f"{self.nodes[0]} by {offset_s:+d} s"

    def heal(self) -> None:
        for node in self.nodes:
            node.set_clock(0)


KINDS = [Kind("clock-jump", Jump, (3, 12), "fake time")]
