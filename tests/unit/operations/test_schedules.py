"""Schedules between JSON and the broker: what is asked makes sense, or is refused with what to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.api.messages import NewMessage
from penstock.api.schedules import NewSchedule, ScheduleTime
from penstock.doors.rest.decoding import decode_body
from penstock.doors.rest.problems import InvalidBody
from penstock.errors import InvalidField
from penstock.features.schedules.messages import PlacedSchedule
from penstock.features.schedules.records import ScheduledMessage, ScheduleStatus, StoredSchedule
from penstock.features.schedules.recurrence import ByCron, Every, Missed
from penstock.operations.messages import message_of
from penstock.operations.schedules import added_view, new_of, schedule_view, time_of

NOW_MS = 1_700_000_000_000

_times: msgspec.json.Decoder[ScheduleTime] = msgspec.json.Decoder(ScheduleTime)
_requests: msgspec.json.Decoder[NewSchedule] = msgspec.json.Decoder(NewSchedule)
_messages: msgspec.json.Decoder[NewMessage] = msgspec.json.Decoder(NewMessage)


def time_in(**fields: Any) -> object:
    return time_of(decode_body(_times, msgspec.json.encode(fields)), NOW_MS)


def request_of(**fields: Any) -> NewSchedule:
    return decode_body(_requests, msgspec.json.encode({"topic": "t", "value": "v", **fields}))


def test_a_time_is_said_in_one_of_four_ways() -> None:
    assert time_in(at=NOW_MS + 5) == (NOW_MS + 5, None)
    assert time_in(at="2023-11-14T22:13:21Z") == (NOW_MS + 1_000, None)
    assert time_in(at="1969-01-01T00:00:00Z") == (0, None)
    assert time_in(delay_ms=3) == (NOW_MS + 3, None)
    assert time_in(every_ms=100) == (None, Every(100, 0))
    assert time_in(every_ms=100, at=NOW_MS) == (NOW_MS, Every(100, 0))
    assert time_in(cron="@daily", time_zone="Europe/Berlin") == (None, ByCron("@daily", "Europe/Berlin"))
    assert time_in(cron="@daily") == (None, ByCron("@daily", "UTC"))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "Say when"),
        ({"at": 1, "delay_ms": 1}, "at or delay_ms, not both"),
        ({"every_ms": 100, "cron": "@daily"}, "every_ms or cron, not both"),
        ({"cron": "@daily", "delay_ms": 1}, "leave out at and delay_ms"),
        ({"delay_ms": 1, "time_zone": "UTC"}, "time_zone goes with cron"),
        ({"delay_ms": -1}, "`int` >= 0"),
        ({"delay_ms": "soon"}, "delay_ms"),
        ({"delay_ms": 1.5}, "delay_ms"),
        ({"at": "2023-11-14T22:13:21"}, "timezone"),
        ({"at": "tomorrow"}, "RFC3339"),
        ({"at": -1}, "`int` >= 0"),
        ({"every_ms": 0}, "`int` >= 1"),
        ({"later": 1}, "unknown field `later`"),
    ],
)
def test_times_that_make_no_sense_are_refused_by_name(fields: dict[str, Any], told: str) -> None:
    with pytest.raises((InvalidBody, InvalidField), match=told):
        time_in(**fields)


def test_a_schedule_is_a_message_and_a_time() -> None:
    new = new_of(
        request_of(key="k", headers={"a": "b"}, partition=2, priority="low", id="x", delay_ms=9, missed="skip"), NOW_MS
    )
    assert (new.id, new.due_ms, new.rule, new.missed) == ("x", NOW_MS + 9, None, Missed.SKIP)
    headers = (("a", b"b"), ("penstock-priority", b"low"))
    assert new.message == ScheduledMessage("t", 2, b"k", b"v", headers, "low")


def test_a_message_is_told_back_as_it_came() -> None:
    new = new_of(request_of(value={"n": 1}, key_base64="/w==", cron="0 7 * * *", time_zone="Asia/Tokyo"), NOW_MS)
    view = msgspec.to_builtins(added_view(new, PlacedSchedule("sched-1-2", NOW_MS + 1, is_new=True), NOW_MS))
    assert view["id"] == "sched-1-2"
    assert (view["value"], view["key_base64"]) == ('{"n":1}', "/w==")
    assert (view["cron"], view["time_zone"], view["missed"]) == ("0 7 * * *", "Asia/Tokyo", "once")
    assert (view["state"], view["runs"]) == ("pending", 0)
    assert "every_ms" not in view


def test_a_failed_one_says_why() -> None:
    schedule = StoredSchedule(
        "s", NOW_MS, ScheduledMessage("t", None, None, None), state=ScheduleStatus.FAILED, reason="The topic is gone."
    )
    view = msgspec.to_builtins(schedule_view(schedule))
    assert (view["state"], view["reason"], view["value"]) == ("failed", "The topic is gone.", None)
    assert "missed" not in view


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"delay_ms": 1, "deliver_at": 1}, "delay_ms or deliver_at, not both - at `\\$`"),
        ({"delay_ms": -1}, "`int` >= 0"),
        ({"delay_ms": True}, "delay_ms"),
        ({"delay_ms": 1 << 60}, "beyond the year 9999"),
        ({"deliver_at": 1 << 60}, "beyond the year 9999"),
        ({"deliver_at": "later"}, "RFC3339"),
        ({"deliver_at": "2030-01-01T00:00:00"}, "timezone"),
        ({"schedule_id": "x"}, "schedule_id goes with delay_ms or deliver_at"),
    ],
)
def test_a_publish_whose_delay_makes_no_sense_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises((InvalidBody, InvalidField), match=told):
        message_of(decode_body(_messages, msgspec.json.encode({"value": "v", **fields})), NOW_MS)


def test_a_publish_may_be_for_later() -> None:
    def due(**fields: Any) -> int | None:
        return message_of(decode_body(_messages, msgspec.json.encode({"value": "v", **fields})), NOW_MS).due_ms

    assert due(delay_ms=5) == NOW_MS + 5
    assert due(deliver_at="2023-11-14T22:13:21+00:00") == NOW_MS + 1_000
    assert due(delay_ms=0) is due(deliver_at=5) is due() is None
