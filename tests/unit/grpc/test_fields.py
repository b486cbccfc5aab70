"""Values that make no sense are refused by the name of their field; those that do survive the way in and out."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.grpc.fields import (
    duration,
    duration_ms,
    instant,
    needed,
    receipts_of,
    start_of,
    timestamp_ms,
    whole,
)
from penstock.doors.grpc.statuses import InvalidArgument
from penstock.grpc.generated.message_pb2 import LogEnd, Start
from penstock.partitions.access import SinceTime


@pytest.mark.parametrize("value", [-1, 0, 11, -(1 << 31)])
def test_a_number_out_of_bounds_is_named(value: int) -> None:
    with pytest.raises(InvalidArgument, match=r"max_messages is .* between 1 and 10"):
        whole(value, "max_messages", low=1, high=10)


def test_zero_stands_for_the_default_where_there_is_one() -> None:
    assert whole(0, "n", low=1, high=10, default=7) == 7


def test_a_missing_text_is_named() -> None:
    with pytest.raises(InvalidArgument, match="topic is missing"):
        needed("", "topic")


@given(st.integers(0, 10**12))
def test_milliseconds_survive_the_way_out_and_in(milliseconds: int) -> None:
    assert duration_ms(duration(milliseconds), "d") == milliseconds
    moment = instant(milliseconds)
    assert moment is not None
    assert timestamp_ms(moment, "t") == milliseconds


def test_less_than_a_millisecond_is_not_nothing() -> None:
    assert duration_ms(Duration(nanos=1), "wait") == 1


@pytest.mark.parametrize(
    "value", [Duration(seconds=-1), Duration(nanos=-1), Duration(seconds=1 << 50), Duration(nanos=2_000_000_000)]
)
def test_durations_that_make_no_sense_are_named(value: Duration) -> None:
    with pytest.raises(InvalidArgument, match="visibility_timeout is"):
        duration_ms(value, "visibility_timeout", low_ms=1)


def test_a_duration_beyond_its_bound_is_named() -> None:
    with pytest.raises(InvalidArgument, match="wait is 60001 ms; it has to be 60000 ms or less"):
        duration_ms(duration(60_001), "wait", high_ms=60_000)


@pytest.mark.parametrize("value", [Timestamp(seconds=-5), Timestamp(nanos=-1), Timestamp(seconds=1 << 60)])
def test_instants_that_make_no_sense_are_named(value: Timestamp) -> None:
    with pytest.raises(InvalidArgument, match=r"messages\[3\]\.timestamp is"):
        timestamp_ms(value, "messages[3].timestamp")


@pytest.mark.parametrize("milliseconds", [-1, 1 << 62])
def test_what_no_calendar_has_is_left_out(milliseconds: int) -> None:
    assert instant(milliseconds) is None


def test_starts() -> None:
    assert start_of(Start()) == "earliest"
    assert start_of(Start(end=LogEnd.LOG_END_LATEST)) == "latest"
    assert start_of(Start(end=LogEnd.LOG_END_EARLIEST)) == "earliest"
    assert start_of(Start(offset=0)) == 0
    assert start_of(Start(since=Timestamp(seconds=2))) == SinceTime(2_000)
    with pytest.raises(InvalidArgument, match=r"start\.offset is -1"):
        start_of(Start(offset=-1))
    with pytest.raises(InvalidArgument, match=r"start\.end"):
        start_of(Start(end=LogEnd.LOG_END_UNSPECIFIED))


def test_receipts_are_neither_none_nor_too_many() -> None:
    assert receipts_of(["a"]) == ["a"]
    for receipts in ([], ["x"] * 10_001):
        with pytest.raises(InvalidArgument, match="receipts has"):
            receipts_of(receipts)
