"""Delayed messages, as the Python client takes, sends and reports them."""

from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.api.messages import BatchItem, BatchReceipt, NewMessage, PublishBatch
from penstock.client.messages import Published, Scheduled
from penstock.client.schedules import DelayedPublisher, DeliveryTime, delivery_time, new_id
from penstock.client.values import Outgoing
from penstock.errors import InvalidRequest, MessageTooLarge, RequestTimedOut


def test_a_delivery_time_is_a_delay_or_an_instant() -> None:
    assert delivery_time(None, None) is None
    assert delivery_time(5, None) == (5_000, None)
    assert delivery_time(0.0015, None) == (2, None)
    assert delivery_time(timedelta(minutes=1), None) == (60_000, None)
    assert delivery_time(0, None) == (0, None)
    assert delivery_time(None, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == (None, 1_000)
    assert delivery_time(None, 1_000) == (None, 1_000)
    assert delivery_time(None, datetime(1960, 1, 1, tzinfo=UTC)) == (None, 0), "the past is now, however long ago"


@pytest.mark.parametrize(
    ("delay", "deliver_at", "message"),
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
def test_anything_else_is_refused(delay: Any, deliver_at: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        delivery_time(delay, deliver_at)


def test_a_delayed_message_is_published_without_a_place() -> None:
    scheduled: Published = Scheduled("t", "x", 1_000)
    assert (scheduled.topic, scheduled.partition, scheduled.offset) == ("t", -1, -1)
    assert (scheduled.schedule_id, scheduled.due_ms) == ("x", 1_000)
    assert scheduled.due == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert scheduled == Scheduled("t", "x", 1_000) != Scheduled("t", "y", 1_000)
    assert pickle.loads(pickle.dumps(scheduled)) == scheduled
    assert "schedule_id='x'" in repr(scheduled)
    published = Published("t", 0, 5, 1_000)
    assert (published.schedule_id, published.due_ms, published.due) == ("", -1, None)


def test_json_has_all_of_a_message() -> None:
    assert msgspec.json.encode(Outgoing(None, None).request()) == b'{"value":null}'
    headers = (("a", b"1"), ("b", None), ("a", b"2"))
    text = msgspec.json.encode(Outgoing(b"k", b"v", headers, 1_000).request(3))
    assert msgspec.json.decode(text) == {
        "value_base64": "dg==",
        "key_base64": "aw==",
        "headers_base64": {"a": ["MQ==", "Mg=="], "b": [None]},
        "partition": 3,
        "timestamp": "1970-01-01T00:00:01Z",
    }


def test_ids_differ() -> None:
    assert len({new_id() for _ in range(100)}) == 100


class FakeTransport:
    """Accepts calls as the server does, and counts them."""

    def __init__(self) -> None:
        self.calls: list[list[NewMessage]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.refused: dict[bytes, Exception] = {}  # by value

    async def call(self, request: PublishBatch, *, can_repeat: bool) -> BatchReceipt:
        assert (request.topic, can_repeat) == ("t", True)
        self.calls.append(request.messages)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0.001)
        self.in_flight -= 1
        for message in request.messages:
            if error := self.refused.get(message.value_base64 or b""):
                raise error
        due = datetime(2030, 1, 1, tzinfo=UTC)
        results = [BatchItem(topic="t", schedule_id=each.schedule_id, due=due) for each in request.messages]
        return BatchReceipt(results=results, published=len(results), failed=0)


WHEN = DeliveryTime(None, 1_893_456_000_000)


def messages(count: int) -> list[Outgoing]:
    return [Outgoing(None, b"%d" % at) for at in range(count)]


def test_messages_of_one_call_have_ids_that_keep_them_together() -> None:
    async def story() -> None:
        transport = FakeTransport()
        published = await DelayedPublisher(transport).publish_many("t", messages(3_300), None, WHEN)  # type: ignore[arg-type]
        assert max(map(len, transport.calls)) == 500
        assert transport.most_in_flight == 2, "one is prepared while the other is served"
        stems = []
        for call in transport.calls:
            parts = [message.schedule_id.rpartition(":") for message in call]
            assert [int(number) for _, _, number in parts] == list(range(len(call)))
            stems.append({stem for stem, _, _ in parts})
        assert all(len(each) == 1 for each in stems)
        assert len(set.union(*stems)) == len(stems)
        sent = {message.value_base64: message.schedule_id for call in transport.calls for message in call}
        assert [each.schedule_id for each in published] == [sent[b"%d" % at] for at in range(3_300)]

    asyncio.run(story())


def test_few_messages_make_one_call_at_a_time() -> None:
    async def story() -> None:
        transport = FakeTransport()
        publisher = DelayedPublisher(transport)  # type: ignore[arg-type]
        await asyncio.gather(*(publisher.publish_many("t", messages(20), None, WHEN) for _ in range(10)))
        assert [len(call) for call in transport.calls] == [200]
        assert await publisher.publish_many("t", [], None, WHEN) == []
        await publisher.flush()

    asyncio.run(story())


def test_a_refused_message_is_reported_when_the_others_are_settled() -> None:
    async def story() -> None:
        transport = FakeTransport()
        publisher = DelayedPublisher(transport)  # type: ignore[arg-type]
        transport.refused[b"7"] = MessageTooLarge("It is.")
        with pytest.raises(MessageTooLarge):
            await publisher.publish_many("t", messages(10), None, WHEN)
        assert [len(call) for call in transport.calls] == [10] + [1] * 10, "each for itself, as none of them was taken"
        transport.refused[b"7"] = RequestTimedOut("Who knows.")
        with pytest.raises(RequestTimedOut):
            await publisher.publish_many("t", messages(10), None, WHEN)
        assert len(transport.calls) == 12, "they may have been taken, so they are not sent again"

    asyncio.run(story())
