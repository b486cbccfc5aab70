"""Faults of disks: power cuts, full disks, files that rot or come short, and a disk that comes back empty."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.chaos.cluster import Node
from bench.chaos.faults.fault import Arena, Fault, Kind, NothingToHit


@dataclass
class PowerCut:
    """The machines of some nodes lose power at the same moment: what was not synced is gone."""

    arena: Arena
    chance: random.Random
    is_all: bool
    nodes: list[Node] = field(default_factory=list)

    def inject(self) -> str:
        free = self.arena.free()
        self.nodes = self.arena.take(free if self.is_all else [self.chance.choice(free)])
        for node in self.nodes:  # the disks first, all of them, and then those who write
            assert node.disk is not None
            node.disk.cut_power()
        for node in self.nodes:
            node.kill()
        return ", ".join(map(str, self.nodes))

    def heal(self) -> None:
        for node in self.nodes:
            assert node.disk is not None
            node.disk.restore_power()
        self.arena.relaunch(self.nodes)
        self.arena.give_back(self.nodes)


@dataclass
class DiskFull:
    """All space of a node's disk is taken, and given back later. A node that ended over it is started again."""

    arena: Arena
    chance: random.Random
    nodes: list[Node] = field(default_factory=list)

    def inject(self) -> str:
        node = self.arena.pick(self.chance)
        self.nodes = self.arena.take([node])
        assert node.disk is not None
        taken = node.disk.fill()
        return f"{node}, {taken >> 20} MiB taken"

    def heal(self) -> None:
        for node in self.nodes:
            assert node.disk is not None
            node.disk.free()
        self.arena.relaunch(self.nodes)
        self.arena.give_back(self.nodes)


@dataclass
class Damage:
    """A node is killed, some of its files are damaged, and it is started again. Never more than one node at a time."""

    arena: Arena
    chance: random.Random
    patterns: Sequence[str]
    harm: Callable[[Path, random.Random], str]
    nodes: list[Node] = field(default_factory=list)

    def inject(self) -> str:
        node = self.arena.pick(self.chance)
        self.nodes = self.arena.take([node])
        node.kill()
        data = node.place.data_dir
        matching = {path for pattern in self.patterns for path in data.rglob(pattern) if path.is_file()}
        found = sorted(path for path in matching if path.stat().st_size and not is_open_segment(path))
        if not found:
            self.heal()
            raise NothingToHit(f"{node} has no file like {' or '.join(self.patterns)}")
        chosen = self.chance.sample(found, min(len(found), 3))
        self.arena.damaged.add(node.number)
        return f"{node}: " + "; ".join(f"{path.relative_to(data)}: {self.harm(path, self.chance)}" for path in chosen)

    def heal(self) -> None:
        self.arena.relaunch(self.nodes)
        self.arena.give_back(self.nodes)


@dataclass
class Wipe:
    """A node dies and comes back with an empty disk."""

    arena: Arena
    chance: random.Random
    nodes: list[Node] = field(default_factory=list)

    def inject(self) -> str:
        self.nodes = self.arena.take([self.arena.pick(self.chance)])
        for node in self.nodes:
            node.kill()
            shutil.rmtree(node.place.data_dir)
        return ", ".join(map(str, self.nodes))

    def heal(self) -> None:
        self.arena.relaunch(self.nodes)
        self.arena.give_back(self.nodes)


def is_open_segment(path: Path) -> bool:
    """Whether this is the segment that is written to. A cut there cannot be told from a write that never ended."""
    return path.suffix == ".log" and path == max(path.parent.glob("*.log"))


def flip_bit(path: Path, chance: random.Random) -> str:
    at, bit = chance.randrange(path.stat().st_size), chance.randrange(8)
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))
    return f"bit {bit} of byte {at}"


def cut_short(path: Path, chance: random.Random) -> str:
    size = path.stat().st_size
    left = chance.randrange(size)
    with path.open("r+b") as file:
        file.truncate(left)
    return f"{left} of {size} bytes left"


def _damage(patterns: Sequence[str], harm: Callable[[Path, random.Random], str]) -> Callable[..., Fault]:
    return lambda arena, chance: Damage(arena, chance, patterns, harm)


# The segments of partitions; what a quorum keeps; what speeds up reading or remembers states.
SEGMENTS = ["logs/**/*.log"]
INDEXES = ["*.index", "*.timeindex"]
SNAPSHOTS = ["*.snapshot", "*snapshot*", "*producers*", "epochs*", "leader-epoch*"]
QUORUM = ["quorum/*", "raft/*", "metadata/*"]

KINDS = [
    Kind("power-cut-node", lambda a, c: PowerCut(a, c, is_all=False), (1, 6), "disks"),
    Kind("power-cut-all", lambda a, c: PowerCut(a, c, is_all=True), (1, 3), "disks"),
    Kind("disk-full", DiskFull, (4, 12), "disks"),
    Kind("bit-flip-segment", _damage(SEGMENTS, flip_bit), (1, 5), wants_whole=True),
    Kind("truncate-segment", _damage(SEGMENTS, cut_short), (1, 5), wants_whole=True),
    Kind("bit-flip-index", _damage(INDEXES, flip_bit), (1, 5), wants_whole=True),
    Kind("truncate-index", _damage(INDEXES, cut_short), (1, 5), wants_whole=True),
    Kind("bit-flip-snapshot", _damage(SNAPSHOTS, flip_bit), (1, 5), wants_whole=True),
    Kind("bit-flip-quorum", _damage(QUORUM, flip_bit), (1, 5), wants_whole=True),
    Kind("wipe-node", Wipe, (1, 5), wants_whole=True),
]
