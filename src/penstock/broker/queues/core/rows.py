"""What a row of a queue says: how it is with an interval of messages. Messages without a row were never delivered."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

COLUMNS: Final = "iqqi"  # kind and delivery count in one, number, time, consumer


class Kind(IntEnum):
    """The state of messages that were delivered."""

    LEASED = 0  # number: the lease, time: until when
    WAITING = 1  # time: from when on to be delivered again
    DYING = 2  # number: the dead letter
    ACKED = 3


LEASED: Final = int(Kind.LEASED)
WAITING: Final = int(Kind.WAITING)
DYING: Final = int(Kind.DYING)
ACKED: Final = int(Kind.ACKED)

NO_CONSUMER: Final = -1
ACKED_FACTS: Final = (ACKED, 0, 0, NO_CONSUMER)


class Row(NamedTuple):
    """An interval of messages with the same history."""

    first: int
    last: int
    kind: int
    deliveries: int  # how often they were delivered
    number: int
    time_ms: int
    consumer: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


def facts_of(kind: int, count: int, number: int = 0, time_ms: int = 0, consumer: int = NO_CONSUMER) -> tuple[int, ...]:
    """A row's facts as they are stored."""
    return count << 2 | kind, number, time_ms, consumer


def row_of(stored: tuple[int, int, tuple[int, ...]]) -> Row:
    first, last, (state, number, time_ms, consumer) = stored
    return Row(first, last, state & 3, state >> 2, number, time_ms, consumer)


def joined(rows: Iterable[Row]) -> list[tuple[int, int]]:
    """The intervals of rows, which are sorted, with neighbours made one."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and found[-1][1] == row.first - 1:
            found[-1] = (found[-1][0], row.last)
        else:
            found.append((row.first, row.last))
    return found


def joined_by_count(rows: Iterable[Row]) -> list[tuple[int, int, int]]:
    """The same, with neighbours made one only if they were delivered as often."""
    found: list[tuple[int, int, int]] = []
    for row in rows:
        if found and found[-1][1:] == (row.first - 1, row.deliveries):
            found[-1] = (found[-1][0], row.last, row.deliveries)
        else:
            found.append((row.first, row.last, row.deliveries))
    return found
