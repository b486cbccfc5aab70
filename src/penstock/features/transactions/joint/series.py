"""A series: joint transactions that are numbered, of which each number is committed once and one is open at a time.

A job that works in numbered batches and may be killed anywhere begins the batch again that it was at, in another
process and perhaps beside the one that it replaces. So for each number there is one winner, and for each series one run
that may write: the last one that came. Whoever asks for a number that is committed is told so and has nothing to do.

There is no ledger beside the transactions. The last one of a series, its *head*, holds what has to be known of those
before it: the last number that was committed, and the runs that were replaced. So the record that decides to commit a
transaction is at the same time the entry in the ledger, and nothing can come between the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, Protocol

from penstock.errors import SeriesFenced
from penstock.features.transactions.joint.messages import Begin
from penstock.features.transactions.joint.records import StoredJoint, StoredPart
from penstock.features.transactions.joint.states import State

# Runs that were replaced and are refused by name. Should one come back after this many others, it is taken for new;
# also then a number is committed once.
RUNS_REMEMBERED: Final = 32
_COMMITTED: Final = frozenset({State.COMMITTING, State.COMMITTED})
NOTHING: Final = -1  # is committed yet


class Turn(Enum):
    """What somebody hears who is about to write a number of a series."""

    DONE = "that number is committed"
    JOIN = "its transaction is open"
    OPEN = "a transaction is opened"


def last_committed(head: StoredJoint | None) -> int:
    """The last number of a series that is committed; nothing can change that any more."""
    if head is None or head.part is None:
        return NOTHING
    return head.part.number if head.state in _COMMITTED else head.part.committed_before


def turn_of(head: StoredJoint | None, number: int, run: str) -> Turn:
    """What to do for a run that comes with a number; `SeriesFenced` if another run has replaced it."""
    if head is None or head.part is None:
        return Turn.OPEN
    part = head.part
    if run in part.older_runs:
        raise SeriesFenced(
            f"Run {run} of series {part.series!r} was replaced by run {part.run}, which goes on with it. Stop this one."
        )
    if number <= last_committed(head):
        return Turn.DONE
    is_same = (part.number, part.run) == (number, run)
    return Turn.JOIN if is_same and head.state is State.OPEN else Turn.OPEN


def next_part(head: StoredJoint | None, wish: Begin) -> StoredPart:
    """What the next transaction of a series knows of it."""
    if head is None or head.part is None:
        return StoredPart(series=wish.series, number=wish.number, run=wish.run)
    part = head.part
    older = part.older_runs if part.run == wish.run else (*part.older_runs, part.run)
    return StoredPart(
        series=wish.series,
        number=wish.number,
        run=wish.run,
        ordinal=part.ordinal + 1,
        committed_before=last_committed(head),
        older_runs=older[-RUNS_REMEMBERED:],
    )


class Known(Protocol):
    """A transaction, as it is stored."""

    @property
    def id(self) -> str: ...
    @property
    def stored(self) -> StoredJoint | None: ...


class Heads:
    """The last transaction of each series."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[int, str]] = {}  # ordinal and id, by series
        self._series: dict[str, str] = {}  # by the id of its head

    @classmethod
    def of(cls, transactions: Iterable[Known]) -> Heads:
        heads = cls()
        for each in transactions:
            if each.stored is not None:
                heads.note(each.id, each.stored)
        return heads

    def note(self, transaction_id: str, stored: StoredJoint) -> None:
        """A transaction is stored; it is the head of its series unless a later one is."""
        part = stored.part
        if part is None:
            return
        ordinal, before = self._heads.get(part.series, (NOTHING, ""))
        if part.ordinal > ordinal:
            self._series.pop(before, None)
            self._heads[part.series] = part.ordinal, transaction_id
            self._series[transaction_id] = part.series

    def get(self, series: str) -> str | None:
        found = self._heads.get(series)
        return None if found is None else found[1]

    def has(self, transaction_id: str) -> bool:
        return transaction_id in self._series

    def drop(self, transaction_id: str) -> None:
        series = self._series.pop(transaction_id, None)
        if series is not None:
            del self._heads[series]
