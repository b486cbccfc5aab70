"""Messages for later, as the Python client takes and tells them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.client.later import form_of, new_id, when_of
from penstock.client.messages import Published, Scheduled
from penstock.client.parcels import Outgoing
from penstock.errors import InvalidRequest


def test_later_is_a_delay_or_a_moment() -> None:
    assert when_of(None, None) is None
    assert when_of(5, None) == (5, None)
    assert when_of(0, None) == (0, None)
    assert when_of(None, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == (None, 1_000)
    assert when_of(None, 1_000) == (None, 1_000)
    assert when_of(None, datetime(1960, 1, 1, tzinfo=UTC)) == (None, 0), "the past is now, however long ago"


@pytest.mark.parametrize(
    ("delay_ms", "deliver_at", "told"),
    [
        (1, 1, "not both"),
        (-1, None, "0 or more"),
        (1.5, None, "whole number"),
        ("5", None, "whole number"),
        (True, None, "whole number"),
        (None, datetime(2030, 1, 1), "time zone"),
        (None, "2030-01-01", "a datetime or whole milliseconds"),
        (None, 1.5, "a datetime or whole milliseconds"),
        (None, -1, "a datetime or whole milliseconds"),
    ],
)
def test_anything_else_is_refused(delay_ms: Any, deliver_at: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        when_of(delay_ms, deliver_at)


def test_a_message_for_later_is_told_like_any_other_but_has_no_place() -> None:
    scheduled: Published = Scheduled("t", "x", 1_000)
    assert (scheduled.topic, scheduled.partition, scheduled.offset) == ("t", -1, -1)
    assert (scheduled.schedule_id, scheduled.due_ms) == ("x", 1_000)
    assert scheduled.due == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert scheduled == Scheduled("t", "x", 1_000) != Scheduled("t", "y", 1_000)
    assert pickle.loads(pickle.dumps(scheduled)) == scheduled
    assert "schedule_id='x'" in repr(scheduled)
    published = Published("t", 0, 5, 1_000)
    assert (published.schedule_id, published.due_ms, published.due) == ("", -1, None)


def test_a_message_in_json_is_all_of_it() -> None:
    assert form_of(Outgoing(None, None)) == {"value": None}
    headers = (("a", b"1"), ("b", None), ("a", b"2"))
    form = form_of(Outgoing(b"k", b"v", headers))
    assert form == {"value_base64": b"v", "key_base64": b"k", "headers_base64": {"a": [b"1", b"2"], "b": [None]}}


def test_ids_differ() -> None:
    assert len({new_id() for _ in range(100)}) == 100
