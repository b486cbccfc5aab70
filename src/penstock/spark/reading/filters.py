"""Filters of a query that tell which offsets have to be read, so that nothing else is.

What is known of partition, offset and topic before anything is read is exact. Of timestamps only a lower limit helps:
before the first message at or after an instant all messages are earlier, but behind it they need not be later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.spark.reading.plan import Reaches, ReadSpan

_NUMBERS: Final = ("partition", "offset")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LIMITS: Final = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@dataclass(frozen=True)
class Among:
    """Whole numbers: from ``least`` to ``most``, and of these only some if they are named."""

    least: float = -math.inf
    most: float = math.inf
    named: frozenset[int] | None = None

    def at_least(self, number: float) -> Among:
        return replace(self, least=max(self.least, number))

    def at_most(self, number: float) -> Among:
        return replace(self, most=min(self.most, number))

    def one_of(self, numbers: frozenset[int]) -> Among:
        return replace(self, named=numbers if self.named is None else self.named & numbers)

    def __contains__(self, number: int) -> bool:
        return self.least <= number <= self.most and (self.named is None or number in self.named)


@dataclass(frozen=True)
class Narrowed:
    """What is left to be read; at first, everything."""

    partition: Among = Among()
    offset: Among = Among()
    topics: frozenset[str] | None = None
    since_ms: int | None = None

    @property
    def instants(self) -> frozenset[int]:
        """Instants that have to be looked up before it is known what `part_of` a span is meant."""
        return frozenset() if self.since_ms is None else frozenset({self.since_ms})

    def part_of(self, span: ReadSpan, reaches: Reaches) -> ReadSpan | None:
        """The part of a span that may have rows of the query, if any."""
        if span.partition not in self.partition or not (self.topics is None or span.topic in self.topics):
            return None
        begin: float = max(span.begin, self.offset.least)
        end: float = min(span.end, self.offset.most + 1)
        if self.offset.named is not None:
            named = [offset for offset in self.offset.named if begin <= offset < end]
            begin, end = (min(named), max(named) + 1) if named else (end, end)
        if self.since_ms is not None:
            begin = max(begin, reaches[span.topic].partitions[span.partition].located[self.since_ms])
        return span._replace(begin=int(begin), end=int(end)) if begin < end else None


def narrow(filters: Iterable[Filter]) -> tuple[Narrowed, list[Filter]]:
    """What filters leave to be read, and those among them that still have to be looked at row by row."""
    narrowed, left = Narrowed(), []
    for each in filters:
        narrowed, is_exact = _narrow(narrowed, each)
        if not is_exact:
            left.append(each)
    return narrowed, left


def _narrow(narrowed: Narrowed, each: Filter) -> tuple[Narrowed, bool]:
    """With one filter more, and whether all rows that are read then meet it."""
    attribute: Sequence[str] = getattr(each, "attribute", ())
    column = attribute[0] if len(attribute) == 1 else ""
    if isinstance(each, IsNotNull):
        return narrowed, column in (*_NUMBERS, "topic")  # none of these is ever null
    if column in _NUMBERS:
        return _narrow_number(narrowed, column, each)
    if column == "topic":
        return _narrow_topic(narrowed, each)
    if column == "timestamp" and isinstance(each, _LIMITS):
        return _narrow_time(narrowed, each), False
    return narrowed, False


def _narrow_number(narrowed: Narrowed, column: str, each: Filter) -> tuple[Narrowed, bool]:
    among = narrowed.partition if column == "partition" else narrowed.offset
    match each:
        case EqualTo(_, int(number)) | EqualNullSafe(_, int(number)):
            among = among.one_of(frozenset({number}))
        case In(_, numbers) if all(isinstance(number, int) for number in numbers):
            among = among.one_of(frozenset(numbers))
        case GreaterThan(_, int(number)):
            among = among.at_least(number + 1)
        case GreaterThanOrEqual(_, int(number)):
            among = among.at_least(number)
        case LessThan(_, int(number)):
            among = among.at_most(number - 1)
        case LessThanOrEqual(_, int(number)):
            among = among.at_most(number)
        case _:
            return narrowed, False
    if column == "partition":
        return replace(narrowed, partition=among), True
    # Offsets that are named leave a span from the first of them to the last, with others in between.
    return replace(narrowed, offset=among), among.named is None or len(among.named) < 2


def _narrow_topic(narrowed: Narrowed, each: Filter) -> tuple[Narrowed, bool]:
    match each:
        case EqualTo(_, str(name)) | EqualNullSafe(_, str(name)):
            names = frozenset({name})
        case In(_, values) if all(isinstance(name, str) for name in values):
            names = frozenset(values)
        case _:
            return narrowed, False
    return replace(narrowed, topics=names if narrowed.topics is None else narrowed.topics & names), True


def _narrow_time(narrowed: Narrowed, each: Any) -> Narrowed:
    if isinstance(each, (LessThan, LessThanOrEqual)) or not isinstance(each.value, datetime):
        return narrowed
    moment = each.value if each.value.tzinfo is not None else each.value.replace(tzinfo=UTC)
    since_ms = (moment - _EPOCH) // timedelta(milliseconds=1)  # rounded down, so that no message is left out
    if since_ms <= (narrowed.since_ms or 0):
        return narrowed
    return replace(narrowed, since_ms=since_ms)
