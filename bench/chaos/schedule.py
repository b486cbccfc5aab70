"""The schedule of faults: what happens when and for how long, all of it from one seed. Pure.

Kinds come in shuffled rounds, so that a run of some minutes has each of them. Which node is hit is decided when it is
hit, from the salt of the entry, because it depends on who leads by then.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

QUIET_AT_START_S = 5.0
QUIET_AT_END_S = 5.0
OVERLAP_SHARE = 0.25
"""How many faults begin while the one before still lasts."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A fault of a kind, `at_s` after the start, that is healed after `hold_s`."""

    at_s: float
    kind: str
    hold_s: float
    salt: int


def make_schedule(
    seed: int, minutes: float, kinds: Mapping[str, tuple[float, float]], rate_per_minute: float
) -> list[Entry]:
    """The faults of a run. `kinds` gives for each kind the shortest and longest time that it is held."""
    if not kinds:
        return []
    chance = random.Random(seed)
    entries: list[Entry] = []
    queue: list[str] = []
    at_s = QUIET_AT_START_S
    last_s = minutes * 60 - QUIET_AT_END_S
    while True:
        if not queue:
            queue = _shuffled(sorted(kinds), chance)
        kind = queue.pop()
        hold_s = chance.uniform(*kinds[kind])
        if at_s + hold_s > last_s:
            return entries
        entries.append(Entry(round(at_s, 3), kind, round(hold_s, 3), chance.getrandbits(32)))
        space_s = chance.uniform(0.5, 1.5) * 60 / rate_per_minute
        is_overlapping = chance.random() < OVERLAP_SHARE
        at_s += hold_s * chance.random() if is_overlapping else hold_s + max(space_s - hold_s, space_s / 4)


def _shuffled(kinds: Sequence[str], chance: random.Random) -> list[str]:
    shuffled = list(kinds)
    chance.shuffle(shuffled)
    return shuffled
