"""The schedules of later days: only where they are in the log is known, by id and by period."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.broker.schedules.identities import Identities
from penstock.broker.schedules.periods import Periods

_SPARE: Final = 4_096  # places that mean nothing any more are swept once they outnumber the others by this


class Far:
    """Offsets of schedules, some twelve bytes each."""

    def __init__(self) -> None:
        self.identities = Identities()
        self.places = Periods()

    def __len__(self) -> int:
        return len(self.identities)

    def add(self, digest: int, offset: int, period: int) -> None:
        self.identities.add(digest, offset)
        self.places.add(period, offset)
        if len(self.places) > 2 * len(self.identities) + _SPARE:
            self.places.sweep(set(self.identities.numbers()).__contains__)

    def remove(self, digest: int, offset: int) -> bool:
        """Forget a schedule; False if it is not here."""
        return self.identities.remove(digest, offset)

    def find(self, digest: int) -> list[int]:
        """Where the schedule of an id may be."""
        return self.identities.find(digest)

    def has(self, digest: int, offset: int) -> bool:
        return self.identities.has(digest, offset)

    def offsets(self, period: int) -> Iterator[int]:
        """Where the schedules of a period are, among places that mean nothing any more."""
        return self.places.offsets(period)
