"""How far a hosted member has read in each of its partitions, and how far it had before its last answer.

An answer can get lost on its way. So answers are numbered, and whoever polls may say which one it saw last: if that is
the one before the last, everything goes back to where it was then, and the lost messages come again.

A position belongs to one topic, not to its name, and is good only as long as the member keeps the partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import InvalidRequest
from penstock.features.groups.messages import Where


class Position(NamedTuple):
    """The offset to be read next, in the topic that has this id."""

    offset: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class _Told:
    """Positions as of an answer, of the partitions that are still held."""

    number: int
    positions: dict[Where, Position]


class Positions:
    """The positions of one member."""

    def __init__(self) -> None:
        self._next: dict[Where, Position] = {}
        self._committed: dict[Where, Position] = {}
        self._number = 0
        self._before: _Told | None = None

    @property
    def number(self) -> int:
        """The number of the last answer; 0 before the first."""
        return self._number

    def __getitem__(self, where: Where) -> Position:
        return self._next[where]

    def __contains__(self, where: object) -> bool:
        return where in self._next

    def places(self) -> list[Where]:
        return sorted(self._next)

    # -- partitions come and go ---------------------------------------------------------------------------------------

    def keep_only(self, places: Iterable[Where]) -> None:
        """Forget all but some partitions."""
        kept = frozenset(places)
        for where in [where for where in self._next if where not in kept]:
            self.drop(where)

    def begin(self, where: Where, position: Position, *, is_committed: bool) -> None:
        """Read a partition from here on."""
        self._next[where] = position
        if is_committed:
            self._committed[where] = position

    def drop(self, where: Where) -> None:
        self._next.pop(where, None)
        self._committed.pop(where, None)
        if self._before is not None:
            self._before.positions.pop(where, None)

    # -- reading on ---------------------------------------------------------------------------------------------------

    def skip(self, ends: Mapping[Where, int]) -> None:
        """Pass over what nobody is to see."""
        for where, offset in ends.items():
            self._next[where] = self._next[where]._replace(offset=offset)

    def answer(self, ends: Mapping[Where, int]) -> int:
        """Messages up to ``ends`` are about to be told; the number of that answer."""
        self._before = _Told(self._number, dict(self._next))
        self._number += 1
        self.skip(ends)
        return self._number

    def confirm(self, last_number: int | None) -> None:
        """The member saw the answer of this number last, or does not say; what it did not see comes again."""
        if self._as_of(last_number) is not self._next:
            self.take_back(self._number)

    def take_back(self, number: int) -> None:
        """An answer never arrived: if it is the last one, go back to before it."""
        if self._before is not None and number == self._number:
            self._next.update(self._before.positions)
            self._number = self._before.number
            self._before = None

    def _as_of(self, number: int | None) -> dict[Where, Position]:
        """The positions as they were after an answer; only the last two are remembered."""
        if number is None or number == self._number:
            return self._next
        if self._before is None or number != self._before.number:
            raise InvalidRequest(f"The last answer to this member was number {self._number}, which cannot be {number}.")
        return self._before.positions

    # -- committing ---------------------------------------------------------------------------------------------------

    def uncommitted(self, last_number: int | None = None) -> dict[Where, Position]:
        """Every position, as of an answer, that is not the committed one."""
        known = self._as_of(last_number)
        return {where: position for where, position in known.items() if self._committed.get(where) != position}

    def committed(self, positions: Mapping[Where, Position]) -> None:
        """These are safe now."""
        self._committed.update({where: position for where, position in positions.items() if where in self._next})
