"""The client's administrative verbs, both halves, and durations and messages as its users see them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import penstock
from penstock import AsyncClient, Client, errors

from .conftest import DoorInThread


def url_of(door: DoorInThread) -> str:
    return f"http://127.0.0.1:{door.server.port}"


def test_topics_are_made_looked_at_changed_and_deleted(door: DoorInThread, topic: str) -> None:
    name = f"{topic}-of-admin"
    with Client(url_of(door)) as client:
        made = client.topics.create(name, partitions=2, configs={"retention_ms": 60_000})
        assert (made.name, made.partitions, made.configs) == (name, 2, {"retention.ms": "60000"})
        with pytest.raises(errors.TopicExists):
            client.topics.create(name)
        assert name in [each.name for each in client.topics.list()]
        assert not any(each.is_internal for each in client.topics.list())
        assert client.topics.scale(name, 3).partitions == 3
        changed = client.topics.configure(name, retention_ms=None, delay_headers_enable=True)
        assert changed.configs == {"delay.headers.enable": "true"}
        client.publish(name, "x", partition=1)
        described = client.topics.describe(name)
        assert [each.high_watermark for each in described.partition_details] == [0, 1, 0]
        client.topics.delete(name)
        with pytest.raises(errors.UnknownTopic):
            client.topics.describe(name)


def test_groups_are_listed_moved_and_deleted(door: DoorInThread, topic: str) -> None:
    async def work() -> None:
        async with AsyncClient(url_of(door)) as client:
            group = f"{topic}-admin"
            await client.publish_many(topic, ["a", "b", "c"], partition=0)
            with pytest.raises(errors.GroupNotFound):
                await client.groups.reset(group, topic, to="earliest")
            plan = await client.groups.reset(group, topic, to=2, partitions=[0], dry_run=True, create=True)
            assert [(move.from_offset, move.to_offset) for move in plan.moves] == [(None, 2)]
            await client.groups.reset(group, topic, to=2, partitions=[0], create=True)
            moved = await client.groups.reset(group, topic, shift=-1, partitions=[0])
            assert [each.committed_offset for each in moved.offsets if each.partition == 0] == [1]
            (listed,) = [each for each in await client.groups.list() if each.group == group]
            assert (listed.lag, listed.members) == (2, 0)
            assert (await client.groups.describe(group)).lag == 2
            await client.groups.delete(group)
            with pytest.raises(errors.GroupNotFound):
                await client.groups.describe(group)

    asyncio.run(work())


def test_queues_are_paused_resumed_moved_and_purged(door: DoorInThread, topic: str) -> None:
    with Client(url_of(door)) as client:
        client.publish_many(topic, ["a", "b"], partition=0)
        queue = client.queue(topic, "admin")
        assert queue.configure(tries=7).settings["tries"] == "7"
        assert {each.topic: each.groups for each in client.queues()}[topic] == ["admin"]
        assert queue.pause("broken").paused
        assert (queue.receive(10), queue.stats().pause_reason) == ([], "broken")
        assert not queue.resume().paused
        assert len(queue.receive(10, visibility_timeout=timedelta(minutes=1))) == 2
        assert queue.seek("earliest").ready == 2
        assert queue.seek(since=datetime.now(UTC) + timedelta(days=1)).ready == 0
        queue.seek("earliest")
        assert queue.purge().ready == 0
        queue.delete()
        assert topic not in {each.topic for each in client.queues() if "admin" in each.groups}


def test_durations_are_seconds_or_timedeltas(door: DoorInThread, topic: str) -> None:
    with Client(url_of(door), timeout=timedelta(seconds=30), linger=timedelta(0)) as client:
        scheduled = client.publish(topic, "x", delay=timedelta(hours=1))
        again = client.schedules.add(topic, "x", every=timedelta(hours=1))
        assert again.every_ms == 3_600_000
        assert abs(scheduled.due_ms - datetime.now(UTC).timestamp() * 1000 - 3_600_000) < 600_000
        client.schedules.reschedule(again.id, delay=0.25)
        queue = client.queue(topic, "durations")
        (message,) = queue.receive(1, wait=timedelta(seconds=60))
        message.extend(timedelta(minutes=5))
        message.nack(delay=timedelta(0))
        with client.transaction(timeout=timedelta(minutes=1)) as txn:
            txn.publish(topic, "y")
        with pytest.raises(errors.InvalidRequest, match="wait must be a number of seconds or a timedelta"):
            queue.receive(wait="soon")  # type: ignore[arg-type]
        client.schedules.cancel(again.id)
    with pytest.raises(errors.InvalidRequest, match="session_timeout"):
        Client(url_of(door)).consume(topic, group="g", session_timeout=-1)
    assert penstock.Retry(timedelta(minutes=2)).delay == 120
    assert penstock.worker("t", visibility_timeout=timedelta(minutes=1))(print).config.visibility_timeout_s == 60


def test_a_message_shows_its_key_and_value(door: DoorInThread, topic: str) -> None:
    with Client(url_of(door)) as client:
        client.publish_many(
            topic,
            [penstock.Draft("shoes", key="k1"), penstock.Draft(b"\xff\x00"), "x" * 1_000, "é" * 100, None],
            partition=0,
        )
        shown = [repr(message) for message in client.read(topic, 0)]
    assert shown[0] == f"<Message {topic}-0 at 0: key 'k1', value 'shoes'>"
    assert shown[1].endswith(r"key None, value b'\xff\x00'>")
    assert shown[2].endswith("x'… (1000 bytes)>")
    assert shown[3].endswith("é'… (200 bytes)>")
    assert shown[4].endswith("value None>")
    assert max(map(len, shown)) < 200
