"""Messages for later, as the Python client takes and tells them."""

from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.client.later import Later, When, form_of, new_id, when_of
from penstock.client.messages import Published, Scheduled
from penstock.client.parcels import Outgoing
from penstock.errors import InvalidRequest, MessageTooLarge, RequestTimedOut


def test_later_is_a_delay_or_a_moment() -> None:
    assert when_of(None, None) is None
    assert when_of(5, None) == (5_000, None)
    assert when_of(0.0015, None) == (2, None)
    assert when_of(timedelta(minutes=1), None) == (60_000, None)
    assert when_of(0, None) == (0, None)
    assert when_of(None, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == (None, 1_000)
    assert when_of(None, 1_000) == (None, 1_000)
    assert when_of(None, datetime(1960, 1, 1, tzinfo=UTC)) == (None, 0), "the past is now, however long ago"


@pytest.mark.parametrize(
    ("delay", "deliver_at", "told"),
    [
        (1, 1, "not both"),
        (-1, None, "0 or more"),
        (timedelta(seconds=-1), None, "0 or more"),
        (float("nan"), None, "a number of seconds or a timedelta"),
        (float("inf"), None, "a number of seconds or a timedelta"),
        ("5", None, "a number of seconds or a timedelta"),
        (True, None, "a number of seconds or a timedelta"),
        (None, datetime(2030, 1, 1), "time zone"),
        (None, "2030-01-01", "a datetime or whole milliseconds"),
        (None, 1.5, "a datetime or whole milliseconds"),
        (None, -1, "a datetime or whole milliseconds"),
    ],
)
def test_anything_else_is_refused(delay: Any, deliver_at: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        when_of(delay, deliver_at)


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


class Door:
    """Takes calls as the server does, and is told when to answer."""

    def __init__(self) -> None:
        self.calls: list[list[dict[str, Any]]] = []
        self.under_way = 0
        self.most_under_way = 0
        self.refused: dict[bytes, Exception] = {}  # by value

    async def post(self, kind: Any, *path: str, body: dict[str, Any]) -> Any:
        assert path == ("v1", "topics", "t", "batch")
        self.calls.append(body["messages"])
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0.001)
        self.under_way -= 1
        for form in body["messages"]:
            if error := self.refused.get(form["value_base64"]):
                raise error
        receipts = [
            {"topic": "t", "schedule_id": form["schedule_id"], "due": "2030-01-01T00:00:00Z"}
            for form in body["messages"]
        ]
        return msgspec.convert({"results": receipts}, kind)


WHEN = When(None, 1_893_456_000_000)


def messages(count: int) -> list[Outgoing]:
    return [Outgoing(None, b"%d" % at) for at in range(count)]


def test_messages_of_one_call_have_ids_that_keep_them_together() -> None:
    async def story() -> None:
        door = Door()
        told = await Later(door).publish_many("t", messages(3_300), None, WHEN)  # type: ignore[arg-type]
        assert max(map(len, door.calls)) == 500
        assert door.most_under_way == 2, "one is made while the other is served"
        stems = []
        for call in door.calls:
            parts = [form["schedule_id"].rpartition(":") for form in call]
            assert [int(number) for _, _, number in parts] == list(range(len(call)))
            stems.append({stem for stem, _, _ in parts})
        assert all(len(each) == 1 for each in stems)
        assert len(set.union(*stems)) == len(stems)
        sent = {form["value_base64"]: form["schedule_id"] for call in door.calls for form in call}
        assert [each.schedule_id for each in told] == [sent[b"%d" % at] for at in range(3_300)]

    asyncio.run(story())


def test_few_messages_make_one_call_at_a_time() -> None:
    async def story() -> None:
        door = Door()
        later = Later(door)  # type: ignore[arg-type]
        await asyncio.gather(*(later.publish_many("t", messages(20), None, WHEN) for _ in range(10)))
        assert [len(call) for call in door.calls] == [200]
        assert await later.publish_many("t", [], None, WHEN) == []
        await later.flush()

    asyncio.run(story())


def test_one_that_is_refused_is_told_of_when_the_others_are_settled() -> None:
    async def story() -> None:
        door = Door()
        later = Later(door)  # type: ignore[arg-type]
        door.refused[b"7"] = MessageTooLarge("It is.")
        with pytest.raises(MessageTooLarge):
            await later.publish_many("t", messages(10), None, WHEN)
        assert [len(call) for call in door.calls] == [10] + [1] * 10, "each for itself, as none of them was taken"
        door.refused[b"7"] = RequestTimedOut("Who knows.")
        with pytest.raises(RequestTimedOut):
            await later.publish_many("t", messages(10), None, WHEN)
        assert len(door.calls) == 12, "they may have been taken, so they are not sent again"

    asyncio.run(story())
