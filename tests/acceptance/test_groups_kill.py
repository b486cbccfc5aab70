"""``kill -9`` of the node under groups at work."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.group import Feed, Fleet, check_at_least_once, wait_until

PARTITIONS = 6


@pytest.mark.slow
def test_a_mixed_group_survives_the_node(make_node: NodeMaker, topic: str, tmp_path: Path) -> None:
    """One member of each library in one group, under a node that dies twice, once in the middle of a round."""
    node = make_node().start()
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=PARTITIONS)
    feed = Feed(node.bootstrap, topic, PARTITIONS)
    fleet = Fleet(tmp_path / "fleet", node.bootstrap, "mixed", topic)
    try:
        for client in ("confluent", "kafka-python", "aiokafka"):
            fleet.join(client, "range")
        wait_until("all three read", lambda: all(story.got for story in fleet.stories))
        rounds = [len(story.assigned) for story in fleet.stories]
        node.kill()
        node.restart()
        was_read = [len(story.got) for story in fleet.stories]
        wait_until(
            "all go on",
            lambda: all(len(story.got) > before for story, before in zip(fleet.stories, was_read, strict=True)),
        )
        assert [len(story.assigned) for story in fleet.stories] == rounds, "members keep their generation"
        fleet.join("confluent", "range")  # which begins a round
        time.sleep(0.7)
        node.kill()
        node.restart()
        wait_until("the newcomer reads", lambda: bool(fleet.members[-1].story.got), patience_s=90)
        sent = feed.stop()
        wait_until("everything is read", lambda: fleet.values() >= sent, patience_s=90)
        doubled = check_at_least_once(sent, fleet.stories)
        print(f"{len(sent)} messages, {doubled} of them more than once")
    finally:
        fleet.end()


@pytest.mark.slow
def test_an_offset_that_was_committed_is_there_after_every_kill(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=PARTITIONS)
    config = {"bootstrap.servers": node.bootstrap, "enable.auto.commit": False, "reconnect.backoff.max.ms": 200}
    groups = [Consumer(config | {"group.id": f"kept-{number}"}) for number in range(8)]
    for offset in range(1, 6):
        for number, consumer in enumerate(groups):
            wanted = [TopicPartition(topic, at, 100 * offset + number, metadata=f"m{offset}") for at in range(3)]
            consumer.commit(offsets=wanted, asynchronous=False)
        node.kill()
        node.restart()
        for number, consumer in enumerate(groups):
            found = consumer.committed([TopicPartition(topic, at) for at in range(4)], timeout=60)
            assert [each.offset for each in found[:3]] == [100 * offset + number] * 3
            assert [each.metadata for each in found[:3]] == [f"m{offset}"] * 3
            assert found[3].offset < 0
    for consumer in groups:
        consumer.close()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_groups_outlive_a_storm(make_node: NodeMaker, topic: str, tmp_path: Path) -> None:
    """The node dies again and again while members come, leave and crash."""
    kills = int(os.environ.get("PENSTOCK_TEST_KILLS", "25"))
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    rng = random.Random(seed)
    node = make_node().start()
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=PARTITIONS)
    feed = Feed(node.bootstrap, topic, PARTITIONS, pause_s=0.05)
    fleet = Fleet(tmp_path / "fleet", node.bootstrap, "storm", topic)
    clients = ("confluent", "kafka-python", "aiokafka")
    try:
        for client in clients:
            fleet.join(client, "range")
        for _ in range(kills):
            time.sleep(rng.uniform(0.1, 4.0))
            running = [member for member in fleet.members if member.is_running]
            if len(running) > 2 and rng.random() < 0.4:
                rng.choice(running).crash()
            if len(running) < 4:
                fleet.join(rng.choice(clients), "range")
            time.sleep(rng.uniform(0.0, 1.0))
            node.kill()
            node.restart()
        sent = feed.stop()
        wait_until("everything is read", lambda: fleet.values() >= sent, patience_s=90)
        doubled = check_at_least_once(sent, fleet.stories)
        print(f"{len(sent)} messages, {doubled} of them more than once, {kills} kills, {len(fleet.members)} members")
    finally:
        fleet.end()
