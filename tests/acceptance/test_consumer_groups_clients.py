"""Groups of the new protocol (KIP-848) with real consumers: members join, leave and crash, the node dies, groups move.

The nodes expect to hear of members more often than they would by default, so that a crash is noticed within the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.group import Feed, Fleet, Member, check_at_least_once, wait_until
from tests.support.node import Node

PARTITIONS = frozenset(range(6))
QUICK = {
    "groups__session_timeout_ms": "6s",
    "groups__heartbeat_interval_ms": "500ms",
    "groups__initial_delay_ms": "0s",
}
NEW = "confluent-consumer"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node"), **QUICK) as running:
        yield running
        assert running.is_running, f"the node died\n{running.log_tail()}"


def holds(member: Member) -> frozenset[int]:
    return member.story.held_before(float("inf"))


def are_shared_out(members: list[Member]) -> bool:
    """Whether the members have all partitions, each of them one member's, and nobody much more than another."""
    held = [holds(member) for member in members]
    sizes = [len(each) for each in held]
    return sum(sizes) == len(PARTITIONS) == len(frozenset().union(*held)) and max(sizes) - min(sizes) <= 1


def describe(node: Node, group: str) -> Any:
    with urllib.request.urlopen(f"{node.http_url}/v1/groups/{group}") as answer:
        return json.load(answer)


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_go_and_crash_and_nothing_is_skipped(
    node: Node, topic: str, tmp_path: Path, assignor: str
) -> None:
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=len(PARTITIONS))
    feed = Feed(node.bootstrap, topic, len(PARTITIONS))
    fleet = Fleet(tmp_path, node.bootstrap, f"group-{topic}", topic)
    try:
        first, second = fleet.join(NEW, assignor), fleet.join(NEW, assignor)
        wait_until("two members share", lambda: are_shared_out([first, second]))
        before = [holds(first), holds(second)]
        revocations = len(first.story.revoked)
        third = fleet.join(NEW, assignor)
        wait_until("three members share", lambda: are_shared_out([first, second, third]))
        if assignor == "uniform":
            assert holds(first) < before[0], "it keeps what it is to keep"
            assert holds(second) < before[1]
            assert len(first.story.revoked) == revocations + 1, "and gives up the rest once"
        wait_until("all read", lambda: all(story.got for story in fleet.stories))
        second.leave()
        wait_until("two share again", lambda: are_shared_out([first, third]))
        third.crash()
        wait_until("the last has all", lambda: holds(first) == PARTITIONS, patience_s=90)
        sent = feed.stop()
        wait_until("the last one finishes the work", lambda: fleet.values() >= sent, patience_s=90)
        doubled = check_at_least_once(sent, fleet.stories)
        print(f"{assignor}: {len(sent)} messages, {doubled} of them more than once")
    finally:
        fleet.end()


@pytest.mark.slow
def test_a_group_survives_the_node(make_node: NodeMaker, topic: str, tmp_path: Path) -> None:
    """Members go on in the epoch they were in, with what they had."""
    node = make_node(**QUICK).start()
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=len(PARTITIONS))
    feed = Feed(node.bootstrap, topic, len(PARTITIONS))
    fleet = Fleet(tmp_path / "fleet", node.bootstrap, "kept", topic)
    try:
        members = [fleet.join(NEW, "uniform") for _ in range(3)]
        wait_until("three members share", lambda: are_shared_out(members))
        wait_until("all read", lambda: all(story.got for story in fleet.stories))
        wait_until("the group is stable", lambda: describe(node, "kept")["state"] == "Stable")
        epoch = describe(node, "kept")["generation"]
        moves = [(len(story.assigned), len(story.revoked)) for story in fleet.stories]
        node.kill()
        node.restart()
        was_read = [len(story.got) for story in fleet.stories]
        wait_until(
            "all go on",
            lambda: all(len(story.got) > before for story, before in zip(fleet.stories, was_read, strict=True)),
        )
        assert [(len(story.assigned), len(story.revoked)) for story in fleet.stories] == moves, "nothing moved"
        assert describe(node, "kept")["generation"] == epoch
        members.append(fleet.join(NEW, "uniform"))
        node.kill()  # in the middle of what the newcomer brings about
        node.restart()
        wait_until("four members share", lambda: are_shared_out(members), patience_s=90)
        sent = feed.stop()
        wait_until("everything is read", lambda: fleet.values() >= sent, patience_s=90)
        doubled = check_at_least_once(sent, fleet.stories)
        print(f"{len(sent)} messages, {doubled} of them more than once")
    finally:
        fleet.end()


@pytest.mark.slow
def test_a_group_moves_to_the_new_protocol_and_back_while_it_works(node: Node, topic: str, tmp_path: Path) -> None:
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=len(PARTITIONS))
    group = f"moving-{topic}"
    feed = Feed(node.bootstrap, topic, len(PARTITIONS))
    fleet = Fleet(tmp_path, node.bootstrap, group, topic)
    try:
        old = [fleet.join("confluent", "cooperative-sticky"), fleet.join("confluent", "cooperative-sticky")]
        wait_until("the classic members share", lambda: are_shared_out(old))
        assert describe(node, group)["type"] == "classic"
        new = fleet.join(NEW, "uniform")
        wait_until("both kinds share", lambda: are_shared_out([*old, new]), patience_s=90)
        assert describe(node, group)["type"] == "consumer"
        wait_until("all read", lambda: all(story.got for story in fleet.stories))
        old[0].leave()
        wait_until("one of each kind share", lambda: are_shared_out([old[1], new]), patience_s=90)
        new.leave()
        wait_until("the classic one has all", lambda: holds(old[1]) == PARTITIONS, patience_s=90)
        assert describe(node, group)["type"] == "classic"
        sent = feed.stop()
        wait_until("everything is read", lambda: fleet.values() >= sent, patience_s=90)
        doubled = check_at_least_once(sent, fleet.stories)
        print(f"{len(sent)} messages, {doubled} of them more than once")
    finally:
        fleet.end()


@pytest.mark.slow
def test_tools_see_the_group_as_it_is(node: Node, topic: str) -> None:
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=2)
    group = f"seen-{topic}"
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group, "group.protocol": "consumer"})
    consumer.subscribe([f"^{topic[:-2]}.*"])  # a pattern
    wait_until("it has the partitions", lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    listed = {each.group_id: each for each in admin.list_consumer_groups().result().valid}
    assert listed[group].type is ConsumerGroupType.CONSUMER
    classic_only = admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result().valid
    assert group not in {each.group_id for each in classic_only}
    described = admin.describe_consumer_groups([group])[group].result()
    assert described.state is ConsumerGroupState.STABLE
    assert described.type is ConsumerGroupType.CONSUMER
    (member,) = described.members
    assert {(each.topic, each.partition) for each in member.assignment.topic_partitions} == {(topic, 0), (topic, 1)}
    seen = describe(node, group)
    assert (seen["type"], seen["state"], seen["members"]) == ("consumer", "Stable", 1)
    assert seen["member_details"][0]["partitions"] == [
        {"topic": topic, "partition": 0},
        {"topic": topic, "partition": 1},
    ]
    consumer.close()
    wait_until("it is empty", lambda: describe(node, group)["state"] == "Empty")
    admin.delete_consumer_groups([group])[group].result()
    assert group not in {each.group_id for each in admin.list_consumer_groups().result().valid}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_group_of_both_protocols_outlives_a_storm(make_node: NodeMaker, topic: str, tmp_path: Path) -> None:
    """The node dies again and again while members of either protocol come, leave and crash, so that the group moves."""
    kills = int(os.environ.get("PENSTOCK_TEST_KILLS", "25"))
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    rng = random.Random(seed)
    node = make_node(**QUICK).start()
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=len(PARTITIONS))
    feed = Feed(node.bootstrap, topic, len(PARTITIONS), pause_s=0.05)
    fleet = Fleet(tmp_path / "fleet", node.bootstrap, "storm", topic)
    classic = (("confluent", "cooperative-sticky"), ("kafka-python", "cooperative-sticky"))
    seen: set[str] = set()
    new: list[Member] = []
    old = [fleet.join(*kind) for kind in classic]
    try:
        for _ in range(kills):
            time.sleep(rng.uniform(1.0, 4.0))  # members find the node again: who cannot reach it leaves without a word
            if not new:
                new = [fleet.join(NEW, "uniform") for _ in range(rng.randrange(1, 3))]
            elif rng.random() < 0.5:
                for member in new:
                    member.crash() if rng.random() < 0.3 else member.leave()
                new = []
            else:
                member = old.pop(rng.randrange(len(old)))
                member.crash() if rng.random() < 0.5 else member.leave()
                old.append(fleet.join(*rng.choice(classic)))
            time.sleep(rng.uniform(0.0, 1.5))
            with contextlib.suppress(OSError):
                seen.add(describe(node, "storm")["type"])
            node.kill()
            node.restart()
        sent = feed.stop()
        wait_until("everything is read", lambda: fleet.values() >= sent, patience_s=90)
        doubled = check_at_least_once(sent, fleet.stories)
        assert seen == {"classic", "consumer"} or kills < 10
        print(f"{len(sent)} messages, {doubled} more than once, {kills} kills, {len(fleet.members)} members")
    finally:
        fleet.end()
