"""Members that speak HTTP beside members that speak Kafka, in one group on a real node."""

from __future__ import annotations

import signal
import statistics
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, Producer
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.group import Feed, Fleet, Member, check_at_least_once, wait_until
from tests.support.node import Node

PARTITIONS = 6


class RestMember(Member):
    def go_silent(self) -> None:
        self._child.send_signal(signal.SIGSTOP)

    def wake_up(self) -> None:
        self._child.send_signal(signal.SIGCONT)


class MixedFleet(Fleet):
    """Members of either kind."""

    def __init__(self, directory: Path, node: Node, group: str, topic: str) -> None:
        super().__init__(directory, node.bootstrap, group, topic)
        self._rest = ["--http", node.http_url, "--group", group, "--topic", topic]

    def join_over_rest(self) -> RestMember:
        diary = self._directory / f"member-{len(self.members)}.diary"
        command = [sys.executable, "-m", "tests.support.rest_member", *self._rest, "--diary", str(diary)]
        member = RestMember(diary, command)
        self.members.append(member)
        return member


def all_read_on(fleet: MixedFleet, members: list[Member]) -> None:
    """Wait until each of some members has read something new."""
    before = [len(member.story.got) for member in members]
    wait_until(
        "all of them go on",
        lambda: all(len(member.story.got) > was for member, was in zip(members, before, strict=True)),
        patience_s=90,
    )


def held(members: list[Member]) -> list[int]:
    now = time.monotonic()
    return sorted(partition for member in members for partition in member.story.held_before(now))


@pytest.mark.slow
@pytest.mark.parametrize(("client", "strategy"), [("confluent", "range"), ("aiokafka", "roundrobin")])
def test_a_group_of_both_kinds_skips_nothing(
    node: Node, topic: str, tmp_path: Path, client: str, strategy: str
) -> None:
    """Members join, leave and go silent over REST while a Kafka client reads beside them."""
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=PARTITIONS)
    group = f"mixed-{topic}"
    feed = Feed(node.bootstrap, topic, PARTITIONS)
    fleet = MixedFleet(tmp_path / "fleet", node, group, topic)
    try:
        first = fleet.join_over_rest()
        wait_until("the first one reads all alone", lambda: held([first]) == list(range(PARTITIONS)))
        kafka = fleet.join(client, strategy)
        silent = fleet.join_over_rest()
        all_read_on(fleet, [first, kafka, silent])
        described = httpx.get(f"{node.http_url}/v1/groups/{group}").json()
        assert (described["protocol"], described["members"]) == (strategy, 3)
        leaver = fleet.join_over_rest()
        all_read_on(fleet, [first, kafka, silent, leaver])
        leaver.leave()
        all_read_on(fleet, [first, kafka, silent])
        silent.go_silent()
        wait_until(
            "the two others read everything",
            lambda: held([first, kafka]) == list(range(PARTITIONS)),
            patience_s=90,
        )
        silent.wake_up()
        all_read_on(fleet, [first, kafka, silent])
        sent = feed.stop()
        wait_until("everything is read", lambda: fleet.values() >= sent, patience_s=90)
        doubled = check_at_least_once(sent, fleet.stories)
        print(f"{len(sent)} messages, {doubled} of them more than once")
    finally:
        fleet.end()


@pytest.mark.slow
def test_members_over_rest_outlive_the_node(make_node: NodeMaker, topic: str, tmp_path: Path) -> None:
    node = make_node().start()
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=PARTITIONS)
    feed = Feed(node.bootstrap, topic, PARTITIONS)
    fleet = MixedFleet(tmp_path / "fleet", node, "killed", topic)
    try:
        members: list[Member] = [fleet.join_over_rest(), fleet.join_over_rest(), fleet.join("confluent", "range")]
        all_read_on(fleet, members)
        for _ in range(3):
            node.kill()
            node.restart()
            all_read_on(fleet, members)
            assert httpx.get(f"{node.http_url}/v1/groups/killed").json()["members"] == 3, "they took their own places"
        sent = feed.stop()
        wait_until("everything is read", lambda: fleet.values() >= sent, patience_s=90)
        doubled = check_at_least_once(sent, fleet.stories)
        print(f"{len(sent)} messages, {doubled} of them more than once")
    finally:
        fleet.end()


def test_a_member_over_rest_shares_a_group_of_the_new_protocol(node: Node, topic: str) -> None:
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=PARTITIONS)
    group = f"new-{topic}"
    config = {"bootstrap.servers": node.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    kafka = Consumer({**config, "group.protocol": "consumer"})
    kafka.subscribe([topic])
    got: list[str] = []

    def read_kafka() -> int:
        message = kafka.poll(0.05)
        if message is not None and not message.error():
            got.append(message.value().decode())
        return len(kafka.assignment())

    wait_until("it reads all alone", lambda: read_kafka() == PARTITIONS)
    with httpx.Client(base_url=f"{node.http_url}/v1/groups/{group}", timeout=60) as client:
        member = {"member_id": client.post("/join", json={"topics": [topic]}).json()["member_id"]}

        def read_rest() -> int:
            page = client.post("/poll", json={**member, "wait_ms": 50}).json()
            got.extend(message["value"] for message in page["messages"])
            return len(page["partitions"])

        wait_until("each has half", lambda: (read_kafka(), read_rest()) == (3, 3))
        producer = Producer({"bootstrap.servers": node.bootstrap})
        sent = [f"{number}" for number in range(60)]
        for number, value in enumerate(sent):
            producer.produce(topic, value, partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        wait_until("everything is read", lambda: bool(read_kafka() and read_rest()) and len(got) >= len(sent))
        assert sorted(got) == sorted(sent), "nothing comes twice while nothing moves"
        assert len(client.post("/commit", json=member).json()["offsets"]) == 3
        kafka.close()
        wait_until("it has taken over", lambda: read_rest() == PARTITIONS)
        client.post("/leave", json=member)


def test_a_member_over_rest_sees_what_is_committed_and_nothing_else(node: Node, topic: str) -> None:
    ConfluentClient(node.bootstrap).create_topic(topic, partitions=1)
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": f"writer-of-{topic}"})
    producer.init_transactions(30)
    with httpx.Client(base_url=f"{node.http_url}/v1/groups/readers-of-{topic}", timeout=60) as client:
        member = {"member_id": client.post("/join", json={"topics": [topic]}).json()["member_id"]}

        def values(wait_ms: int) -> list[str]:
            page = client.post("/poll", json={**member, "wait_ms": wait_ms}).json()
            return [message["value"] for message in page["messages"]]

        producer.begin_transaction()
        producer.produce(topic, "aborted")
        producer.flush(60)
        producer.abort_transaction(30)
        producer.begin_transaction()
        producer.produce(topic, "committed")
        producer.flush(60)
        assert values(300) == []
        started = time.perf_counter()
        committing = threading.Timer(0.3, producer.commit_transaction)
        committing.start()
        assert values(20_000) == ["committed"]
        assert time.perf_counter() - started < 15, "the poll wakes with the commit"
        committing.join()
        client.post("/leave", json=member)


def test_a_long_poll_wakes_with_a_publish(node: Node, topic: str) -> None:
    with httpx.Client(base_url=node.http_url, timeout=60) as client, httpx.Client(base_url=node.http_url) as publisher:
        publisher.post("/v1/topics", json={"name": topic, "partitions": PARTITIONS})
        path = f"/v1/groups/woken-{topic}"
        member = client.post(f"{path}/join", json={"topics": [topic]}).json()["member_id"]
        published: list[float] = []

        def publish(number: int) -> None:
            time.sleep(0.25)
            published.append(time.perf_counter())
            publisher.post(f"/v1/topics/{topic}/publish", json={"value": str(number)})

        delays = []
        for number in range(10):
            thread = threading.Thread(target=publish, args=(number,))
            thread.start()
            page = client.post(f"{path}/poll", json={"member_id": member}).json()
            delays.append(time.perf_counter() - published[-1])
            assert [message["value"] for message in page["messages"]] == [str(number)]
            thread.join()
        assert statistics.median(delays) < 1, delays
