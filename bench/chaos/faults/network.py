"""Faults of the network. There is one network, so one of these at a time: the conductor heals one before the next."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.chaos.faults.fault import Arena, Fault, Kind
from bench.chaos.network import CLIENTS


@dataclass
class Cut:
    """Something is cut, and all is mended at the end."""

    arena: Arena
    chance: random.Random
    shape: Callable[[Arena, random.Random], str]

    def inject(self) -> str:
        return self.shape(self.arena, self.chance)

    def heal(self) -> None:
        self.arena.network.heal()


@dataclass
class Flap:
    """A cable that is pulled and put back, again and again."""

    arena: Arena
    chance: random.Random
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def inject(self) -> str:
        number = self.chance.choice(self.arena.numbers)
        self._thread = threading.Thread(target=self._flap, args=[number], daemon=True)
        self._thread.start()
        return f"node {number}"

    def _flap(self, number: int) -> None:
        while not self._is_over.is_set():
            self.arena.network.unplug(number)
            self._is_over.wait(self.chance.uniform(0.1, 1.5))
            self.arena.network.replug(number)
            self._is_over.wait(self.chance.uniform(0.1, 1.5))

    def heal(self) -> None:
        self._is_over.set()
        if self._thread:
            self._thread.join()
        self.arena.network.heal()


def _halves(arena: Arena, chance: random.Random) -> str:
    numbers = chance.sample(arena.numbers, len(arena.numbers))
    some, others = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    arena.network.cut(some, others)
    return f"{sorted(some)} | {sorted(others)}"


def _halves_with_clients(arena: Arena, chance: random.Random) -> str:
    """The smaller part keeps the clients: nothing must be acknowledged there."""
    numbers = chance.sample(arena.numbers, len(arena.numbers))
    some, others = numbers[: (len(numbers) - 1) // 2], numbers[(len(numbers) - 1) // 2 :]
    arena.network.cut(some, others)
    arena.network.cut(others, [CLIENTS])
    return f"{sorted(some)} and clients | {sorted(others)}"


def _ring(arena: Arena, chance: random.Random) -> str:
    """Each hears only its neighbours; of three nodes two do not hear each other, and the third hears both."""
    order = chance.sample(arena.numbers, len(arena.numbers))
    size = len(order)
    for at, number in enumerate(order):
        beyond = [order[k] for k in range(at + 2, size) if size == 3 or (k - at) % size != size - 1]
        arena.network.cut([number], beyond)
    return "-".join(map(str, order))


def _one_way(arena: Arena, chance: random.Random) -> str:
    hearer, *speakers = chance.sample(arena.numbers, len(arena.numbers))
    some = speakers[: chance.randint(1, len(speakers))] if speakers else []
    arena.network.deafen(hearer, some)
    return f"node {hearer} does not hear {sorted(some)}"


def _leader_deaf(arena: Arena, chance: random.Random) -> str:
    """Everybody hears the leader, and it hears no other node."""
    leader = arena.pick_leader(chance).number
    arena.network.deafen(leader, [number for number in arena.numbers if number != leader])
    return f"node {leader} hears no other"


def _isolated(arena: Arena, chance: random.Random) -> str:
    leader = arena.pick_leader(chance).number
    arena.network.cut([leader], [number for number in arena.numbers if number != leader])
    return f"node {leader} alone, with clients"


def _controller_isolated(arena: Arena, chance: random.Random) -> str:
    number = arena.pick_controller(chance).number
    arena.network.cut([number], [*(other for other in arena.numbers if other != number), CLIENTS])
    return f"node {number} alone, without clients"


def _clients(arena: Arena, chance: random.Random) -> str:
    some = chance.sample(arena.numbers, chance.randint(1, len(arena.numbers)))
    arena.network.cut(some, [CLIENTS])
    return f"clients do not reach {sorted(some)}"


def _loss(arena: Arena, chance: random.Random) -> str:
    share = chance.choice([0.05, 0.15, 0.3])
    some = chance.sample(arena.numbers, chance.randint(1, len(arena.numbers)))
    for number in some:
        arena.network.lose(number, share)
    return f"{share:.0%} of what {sorted(some)} should hear"


def _kind(name: str, shape: Callable[[Arena, random.Random], str], hold_s: tuple[float, float] = (3, 12)) -> Kind:
    def make(arena: Arena, chance: random.Random) -> Fault:
        return Cut(arena, chance, shape)

    return Kind(name, make, hold_s, "network")


KINDS = [
    _kind("partition-halves", _halves),
    _kind("partition-clients-with-minority", _halves_with_clients),
    _kind("partition-ring", _ring),
    _kind("partition-one-way", _one_way),
    _kind("partition-deaf-leader", _leader_deaf),
    _kind("partition-leader", _isolated),
    _kind("partition-controller", _controller_isolated),
    _kind("partition-clients", _clients, (2, 8)),
    _kind("packet-loss", _loss, (3, 10)),
    Kind("link-flaps", Flap, (4, 10), "network"),
]
