"""When a message is to be delivered, by what its sender said."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidRequest
from penstock.features.messages.delays import due_of, later_message, refuse_delays
from penstock.features.messages.publishing import OutgoingMessage
from penstock.features.schedules.messages import DUE_MS_MAX

NOW_MS = 1_700_000_000_000


def test_a_delay_counts_from_now_and_a_moment_does_not() -> None:
    assert due_of(5_000, None, NOW_MS) == NOW_MS + 5_000
    assert due_of(None, NOW_MS + 7, NOW_MS) == NOW_MS + 7


@pytest.mark.parametrize(
    ("delay_ms", "moment_ms"), [(None, None), (0, None), (None, NOW_MS), (None, NOW_MS - 1), (None, 0)]
)
def test_nothing_said_zero_and_the_past_are_now(delay_ms: int | None, moment_ms: int | None) -> None:
    assert due_of(delay_ms, moment_ms, NOW_MS) is None


def test_both_negative_and_beyond_all_calendars_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="wait or when, not both"):
        due_of(1, NOW_MS, NOW_MS, ("wait", "when"))
    with pytest.raises(InvalidRequest, match="wait is -1 ms"):
        due_of(-1, None, NOW_MS, ("wait", "when"))
    with pytest.raises(InvalidRequest, match="wait leads beyond the year 9999"):
        due_of(DUE_MS_MAX, None, NOW_MS, ("wait", "when"))
    with pytest.raises(InvalidRequest, match="when leads beyond the year 9999"):
        due_of(None, DUE_MS_MAX + 1, NOW_MS, ("wait", "when"))
    assert due_of(None, DUE_MS_MAX, NOW_MS) == DUE_MS_MAX


def test_a_transaction_takes_no_messages_for_later() -> None:
    refuse_delays([OutgoingMessage(value=b"a")])
    with pytest.raises(InvalidRequest, match="transaction"):
        refuse_delays([OutgoingMessage(value=b"a"), OutgoingMessage(value=b"b", due_ms=NOW_MS)])


def test_a_message_for_later_keeps_its_headers_and_names_its_priority() -> None:
    headers = (("a", b"1"), ("penstock-priority", b"high"))
    later = later_message("t", OutgoingMessage(key=b"k", value=b"v", headers=headers, partition=3))
    assert (later.topic, later.partition, later.key, later.value) == ("t", 3, b"k", b"v")
    assert (later.headers, later.priority) == (headers, "high")
    assert later_message("t", OutgoingMessage(value=b"v")).priority == ""
