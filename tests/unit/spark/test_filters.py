"""Filters that are pushed down leave out only what they would leave out anyway."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    Not,
    StringStartsWith,
)

from penstock.spark.reading.filters import Narrowed, narrow
from penstock.spark.reading.plan import PartitionReach, ReadSpan, TopicReach

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = {"a": [5, 9, 3, 9, 12, 4], "b": [1, 1, 2, 30, 30, 31]}  # milliseconds of the messages of each topic
PARTITIONS = (0, 1)

Row = dict[str, Any]
ROWS: list[Row] = [
    {"topic": topic, "partition": at, "offset": offset, "timestamp": EPOCH + timedelta(milliseconds=ms)}
    for topic, times in TIMES.items()
    for at in PARTITIONS
    for offset, ms in enumerate(times)
]


def meets(row: Row, each: Filter) -> bool:
    if isinstance(each, Not):
        return not meets(row, each.child)
    found: Any = row[each.attribute[0]]  # type: ignore[attr-defined]
    value: Any = getattr(each, "value", None)
    match each:
        case EqualTo() | EqualNullSafe():
            return bool(found == value)
        case In():
            return found in value
        case GreaterThan():
            return bool(found > value)
        case GreaterThanOrEqual():
            return bool(found >= value)
        case LessThan():
            return bool(found < value)
        case LessThanOrEqual():
            return bool(found <= value)
        case StringStartsWith():
            return str(found).startswith(value)
    return found is not None


def read(narrowed: Narrowed) -> list[Row]:
    """The rows of what is left to be read, as a node would find them."""
    found = []
    for topic, times in TIMES.items():
        located = {at: next((o for o, ms in enumerate(times) if ms >= at), len(times)) for at in narrowed.instants}
        reach = PartitionReach(0, len(times), len(times), 1, located)
        reaches = {topic: TopicReach("id", dict.fromkeys(PARTITIONS, reach))}
        for at in PARTITIONS:
            span = narrowed.part_of(ReadSpan(topic, "id", at, 0, len(times)), reaches)
            if span is not None:
                assert 0 <= span.begin < span.end <= len(times)
                found += [
                    row
                    for row in ROWS
                    if (row["topic"], row["partition"]) == (topic, at) and span.begin <= row["offset"] < span.end
                ]
    return found


numbers = st.integers(-1, 7)
times = st.integers(0, 33_000).map(lambda us: EPOCH + timedelta(microseconds=us))


def comparisons(column: str, value: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    kinds = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    one = [st.builds(kind, st.just((column,)), value) for kind in kinds]
    some = st.builds(In, st.just((column,)), st.lists(value, max_size=3).map(tuple))
    plain = st.one_of(*one, some, st.just(IsNotNull((column,))))
    return st.one_of(plain, plain.map(Not))


filters = st.one_of(
    comparisons("partition", numbers),
    comparisons("offset", numbers),
    comparisons("timestamp", times),
    comparisons("topic", st.sampled_from(["a", "b", "c"])),
    st.just(StringStartsWith(("topic",), "a")),
)


@given(st.lists(filters, max_size=4))
def test_what_is_read_and_looked_at_again_is_what_the_filters_say(some: list[Filter]) -> None:
    narrowed, left = narrow(some)
    assert all(any(each is other for other in some) for each in left), "as Spark demands"
    found = [row for row in read(narrowed) if all(meets(row, each) for each in left)]
    assert found == [row for row in ROWS if all(meets(row, each) for each in some)]


@pytest.mark.parametrize(
    ("some", "rows", "is_exact"),
    [
        ([EqualTo(("partition",), 1), EqualTo(("topic",), "a")], 6, True),
        ([GreaterThanOrEqual(("offset",), 2), LessThan(("offset",), 4)], 8, True),
        ([In(("offset",), (1, 3))], 12, False),
        ([GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=30))], 6, False),
        ([LessThan(("timestamp",), EPOCH + timedelta(milliseconds=2))], 24, False),
        ([EqualTo(("value", "id"), 1)], 24, False),
    ],
)
def test_little_is_read(some: list[Filter], rows: int, is_exact: bool) -> None:
    narrowed, left = narrow(some)
    assert (len(read(narrowed)), not left) == (rows, is_exact)
