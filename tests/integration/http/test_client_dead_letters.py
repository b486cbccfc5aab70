"""The client's view of a queue's figures and dead letters, through a real door."""

from __future__ import annotations

import time

import pytest

from penstock import Client, errors

from .conftest import DoorInThread


def test_dead_letters_are_listed_planned_and_sent_back(door: DoorInThread, topic: str) -> None:
    with Client(f"http://127.0.0.1:{door.server.port}", timeout=60) as client:
        client.publish_many(topic, [b"good", b"bad \xff", b"worse"], partition=0)
        queue = client.queue(topic, "g")
        good, bad, worse = queue.receive(10)
        assert queue.stats().in_flight == 3
        good.ack()
        bad.reject(reason="not text")
        worse.reject(reason="no sense")
        deadline = time.monotonic() + 60
        while len(letters := queue.dead_letters()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)  # they are buried behind the answer
        assert sorted((letter.value, letter.reason) for letter in letters) == [
            (b"bad \xff", "not text"),
            (b"worse", "no sense"),
        ]
        assert {letter.origin.topic for letter in letters} == {topic}
        assert [letter.value for letter in queue.dead_letters(reason="not text")] == [b"bad \xff"]
        assert len(queue.dead_letters(1)) == 1
        plan = queue.plan_redrive(reason="not text")
        assert (plan.matched, plan.targets) == (1, {topic: 1})
        assert queue.receive(10) == []
        done = queue.redrive(reason="not text")
        assert (done.moved, done.failed) == (1, 0), done
        assert [message.value for message in queue.receive(10, wait=10)] == [b"bad \xff"]
        assert [letter.reason for letter in queue.dead_letters()] == ["no sense"]
        assert queue.stats().in_flight == 1


def test_a_group_that_is_not_there_has_no_figures(door: DoorInThread, topic: str) -> None:
    with Client(f"http://127.0.0.1:{door.server.port}", timeout=60) as client:
        client.create_topic(topic)
        with pytest.raises(errors.GroupNotFound):
            client.queue(topic, "nobody").stats()
