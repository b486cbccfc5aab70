"""A network that delays, loses, repeats and reorders messages, and that can be cut between any two nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, Protocol

_LATE_MAX_MS: Final = 5_000


@dataclass(slots=True)
class Weather:
    """How bad it is. Shares are of one; delays are drawn evenly up to the maximum."""

    delay_max_ms: int = 10
    lost: float = 0.0
    repeated: float = 0.0
    late: float = 0.0  # the share that takes seconds


class Planner(Protocol):
    """Whoever lets things happen later."""

    def plan(self, delay_ms: int, event: Callable[[], None]) -> None: ...


class Network:
    """Carries messages from node to node."""

    def __init__(self, events: Planner, random: Random, weather: Weather) -> None:
        self._events = events
        self._random = random
        self.weather = weather
        self._cut: set[tuple[int, int]] = set()
        self._storms = 0  # that are over

    def send(self, sender: int, receiver: int, deliver: Callable[[], None]) -> None:
        random, weather = self._random, self.weather
        copies = 2 if random.random() < weather.repeated else 1
        for _ in range(copies):
            if random.random() >= weather.lost:
                is_late = random.random() < weather.late
                delay_ms = 1 + random.randrange(_LATE_MAX_MS if is_late else weather.delay_max_ms)
                self._events.plan(delay_ms, partial(self._arrive, self._storms, sender, receiver, deliver))

    def _arrive(self, storms: int, sender: int, receiver: int, deliver: Callable[[], None]) -> None:
        if storms == self._storms and (sender, receiver) not in self._cut:
            deliver()

    def cut(self, sender: int, receiver: int) -> None:
        """Carry nothing more in this direction, not even what is on its way."""
        self._cut.add((sender, receiver))

    def split(self, here: set[int], there: set[int]) -> None:
        for one in here:
            for other in there:
                self.cut(one, other)
                self.cut(other, one)

    def heal(self) -> None:
        self._cut.clear()

    def calm(self) -> None:
        """Fair weather from now on. What is on its way is lost, so that nothing comes late."""
        self.heal()
        self.weather = Weather()
        self._storms += 1
