"""What queue groups have done, as others see it: lag in Kafka's tools, room on the disk, companions in a cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from tests.support.cluster import Cluster, eventually
from tests.support.node import Node, penstock_command

VALUE = b"x" * 1000


@cache
def admin_of(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def create(node: Node, topic: str, partitions: int = 1, **configs: str) -> None:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    admin = admin_of(node.bootstrap)
    factor = 3 if isinstance(node.settings.get("cluster__peers"), str) else 1
    admin.create_topics([NewTopic(topic, partitions, factor, config=settings)])[topic].result(60)


def publish(node: Node, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for _ in range(count):
        producer.produce(topic, VALUE, partition=partition)
    assert producer.flush(60) == 0


def post(node: Node, path: str, **body: object) -> dict[str, Any]:
    answer = httpx.post(f"{node.http_url}/v1/{path}", json=body, timeout=60)
    assert answer.status_code < 300, answer.text
    found: dict[str, Any] = answer.json() if answer.content else {}
    return found


def receive(node: Node, topic: str, group: str, most: int) -> list[dict[str, Any]]:
    answer = post(node, f"queues/{topic}/receive", group=group, max=most, wait_ms=20_000)
    found: list[dict[str, Any]] = answer["messages"]
    return found


def ack(node: Node, topic: str, group: str, messages: list[dict[str, Any]]) -> None:
    post(node, f"queues/{topic}/ack", group=group, receipts=[message["receipt"] for message in messages])


def work(node: Node, topic: str, group: str, count: int) -> None:
    """Receive and ack so many."""
    left = count
    while left:
        messages = receive(node, topic, group, left)
        ack(node, topic, group, messages)
        left -= len(messages)


def committed(node: Node, group: str, topic: str) -> dict[int, int]:
    """As Kafka's tools ask for it; nothing while there is no such group, on which the client would crash."""
    if httpx.get(f"{node.http_url}/v1/groups/{group}").status_code != 200:
        return {}
    admin = admin_of(node.bootstrap)
    asked = [ConsumerGroupTopicPartitions(group)]
    found = admin.list_consumer_group_offsets(asked)[group].result(60).topic_partitions
    return {place.partition: place.offset for place in found if place.topic == topic}


def log_start(node: Node, topic: str, partition: int = 0) -> int:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "looks"})
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60, cached=False)
    consumer.close()
    return int(low)


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_kafka_tools_see_a_queue_group_and_its_lag(node: Node, topic: str) -> None:
    group = f"workers-of-{topic}"
    create(node, topic, 2)
    publish(node, topic, 10)
    publish(node, topic, 4, partition=1)
    eventually(lambda: len(receive(node, topic, group, 1)) == 1, what="a message")
    messages = [message for message in receive(node, topic, group, 100) if message["partition"] == 0]
    ack(node, topic, group, messages)  # all but the first of one of the partitions, or all of partition 0
    first = min(message["offset"] for message in messages)
    expected = 10 if first == 0 else 0
    eventually(lambda: committed(node, group, topic).get(0) == expected, what="the committed offset")
    detail = httpx.get(f"{node.http_url}/v1/groups/{group}").json()
    assert (detail["state"], detail["lag"]) == ("Empty", 14 - expected)
    shown = subprocess.run(
        [penstock_command(), "group", "describe", group, "--output", "json", "--url", node.http_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows = {row["partition"]: row for row in json.loads(shown.stdout)["offsets"]}
    assert rows[0]["committed_offset"] == expected
    assert rows[0]["lag"] == 10 - expected


def test_only_the_longest_done_prefix_counts(node: Node, topic: str) -> None:
    group = f"workers-of-{topic}"
    create(node, topic)
    publish(node, topic, 10)
    messages = receive(node, topic, group, 10)
    while len(messages) < 10:
        messages += receive(node, topic, group, 10)
    by_offset = {message["offset"]: message for message in messages}
    ack(node, topic, group, [by_offset[offset] for offset in (0, 1, 2, 5, 6)])
    eventually(lambda: committed(node, group, topic) == {0: 3}, what="three of them")
    ack(node, topic, group, [by_offset[offset] for offset in (3, 4)])
    eventually(lambda: committed(node, group, topic) == {0: 7}, what="over what was acked ahead")


def test_the_offsets_of_a_queue_are_there_again_after_a_kill(make_node: Any, topic: str) -> None:
    node = make_node().start()
    create(node, topic)
    publish(node, topic, 5)
    work(node, topic, "workers", 3)
    node.kill()
    node.start()
    eventually(lambda: committed(node, "workers", topic) == {0: 3}, what="the committed offset")


def test_a_kafka_group_of_the_same_name_goes_its_own_way(node: Node, topic: str) -> None:
    group = f"both-{topic}"
    create(node, topic)
    publish(node, topic, 6)
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None
    assert message.error() is None
    work(node, topic, group, 6)
    consumer.commit(message, asynchronous=False)
    publish(node, topic, 1)
    work(node, topic, group, 1)
    assert committed(node, group, topic) == {0: 1}
    consumer.close()
    publish(node, topic, 1)
    work(node, topic, group, 1)
    work(node, topic, f"other-{group}", 8)
    eventually(lambda: committed(node, f"other-{group}", topic) == {0: 8}, what="a round of commits")
    assert committed(node, group, topic) == {0: 1}, "a consumer that comes back goes on where it was"


# -- retention ---------------------------------------------------------------------------------------------------------


def test_what_every_queue_group_has_acked_leaves_the_disk(make_node: Any, topic: str) -> None:
    node = make_node().start()
    create(node, topic, queue_retention="acked", segment_bytes="20000")
    for _ in range(10):
        publish(node, topic, 10)  # a segment ends where a batch does
    directory = node.partition_dir(topic)
    first = directory / f"{0:020}.log"
    assert first.exists()
    assert len(list(directory.glob("*.log"))) > 3
    slow = receive(node, topic, "slow", 1)
    work(node, topic, "fast", 100)
    eventually(lambda: committed(node, "fast", topic) == {0: 100}, what="the fast group's offset")
    assert log_start(node, topic) == 0
    assert first.exists(), "the slow group has not acked"
    ack(node, topic, "slow", slow)
    work(node, topic, "slow", 59)
    eventually(lambda: log_start(node, topic) == 60, what="the log's start")
    eventually(lambda: not first.exists(), what="the file")
    work(node, topic, "slow", 40)
    eventually(lambda: log_start(node, topic) == 100, what="the log's start")
    eventually(lambda: sum(path.stat().st_size for path in directory.glob("*.log")) == 0, what="an empty log")
    publish(node, topic, 1)
    assert [message["offset"] for message in receive(node, topic, "fast", 5)] == [100]


def test_without_a_queue_group_nothing_goes_and_log_retention_keeps_acked_messages(node: Node, topic: str) -> None:
    create(node, topic, queue_retention="acked")
    create(node, f"{topic}-log")
    for name in (topic, f"{topic}-log"):
        publish(node, name, 5)
    work(node, f"{topic}-log", f"w-{topic}", 5)
    eventually(lambda: committed(node, f"w-{topic}", f"{topic}-log") == {0: 5}, what="the offset")
    assert log_start(node, topic) == log_start(node, f"{topic}-log") == 0
    httpx.patch(f"{node.http_url}/v1/topics/{topic}-log", json={"configs": {"queue.retention": "acked"}})
    eventually(lambda: log_start(node, f"{topic}-log") == 5, what="what was acked before")
    assert log_start(node, topic) == 0


# -- settings ----------------------------------------------------------------------------------------------------------


def test_queue_settings_are_settings_of_the_topic_at_every_door(node: Node, topic: str) -> None:
    create(node, topic, queue_tries="7", queue_order="key")
    admin = admin_of(node.bootstrap)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(60)
    assert (found["queue.tries"].value, found["queue.order"].value) == ("7", "key")
    assert found["queue.visibility.timeout.ms"].value == "30000"
    settings = httpx.get(f"{node.http_url}/v1/topics/{topic}").json()["settings"]
    assert settings["queue.tries"] == "7"
    for configs, what in (
        ({"queue.tries": -1}, "queue.tries"),
        ({"queue.order": "fifo"}, "none, key"),
        ({"queue.retention": "never"}, "log, acked"),
        ({"queue.trys": 1}, "queue.tries"),
    ):
        refused = httpx.patch(f"{node.http_url}/v1/topics/{topic}", json={"configs": configs})
        assert refused.status_code in (400, 422)
        assert what in refused.text


# -- companions --------------------------------------------------------------------------------------------------------


def test_a_companion_is_hidden_readable_and_nobodys_to_change(node: Node, topic: str) -> None:
    create(node, topic)
    publish(node, topic, 1)
    work(node, topic, "workers", 1)
    companion = f"__queue.{topic}"
    listed = [each["name"] for each in httpx.get(f"{node.http_url}/v1/topics").json()["topics"]]
    assert topic in listed
    assert companion not in listed
    everything = httpx.get(f"{node.http_url}/v1/topics", params={"include_internal": "true"}).json()["topics"]
    assert companion in [each["name"] for each in everything]
    for refused in (
        httpx.delete(f"{node.http_url}/v1/topics/{companion}"),
        httpx.patch(f"{node.http_url}/v1/topics/{companion}", json={"configs": {"retention.ms": 1}}),
        httpx.post(f"{node.http_url}/v1/topics/{companion}/publish", json={"value": "x"}),
        httpx.post(f"{node.http_url}/v1/topics", json={"name": "__queue.other"}),
    ):
        assert refused.status_code in (400, 403, 409, 422), refused.text
    admin = admin_of(node.bootstrap)
    with pytest.raises(Exception, match=r"POLICY_VIOLATION|own state"):
        admin.delete_topics([companion])[companion].result(60)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    errors: list[object] = []
    producer.produce(companion, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    assert errors[0] is not None
    admin.delete_topics([topic])[topic].result(60)
    everything = httpx.get(f"{node.http_url}/v1/topics", params={"include_internal": "true"}).json()["topics"]
    assert companion not in [each["name"] for each in everything]
    eventually(lambda: not node.partition_dir(companion).exists(), what="the companion's files")
    create(node, topic)
    publish(node, topic, 1)
    assert [message["offset"] for message in receive(node, topic, "workers", 5)] == [0], (
        "nothing of the old one is left"
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def test_in_a_cluster_leaders_stay_together_and_offsets_and_trims_find_their_way(cluster: Cluster, topic: str) -> None:
    any_node = cluster.nodes[1]
    create(any_node, topic, 3, queue_retention="acked")
    for partition in range(3):
        publish(any_node, topic, 5, partition)
    work(any_node, topic, "workers", 15)
    companion = f"__queue.{topic}"
    eventually(lambda: cluster.leaders(companion) == cluster.leaders(topic), what="the same leaders for both")
    eventually(lambda: committed(any_node, "workers", topic) == {0: 5, 1: 5, 2: 5}, what="offsets of all leaders")
    eventually(lambda: [log_start(any_node, topic, each) for each in range(3)] == [5, 5, 5], what="starts")
    victim = cluster.leaders(topic)[0]
    cluster.nodes[victim].kill()
    other = next(node for node in cluster.running)
    eventually(
        lambda: victim not in cluster.leaders(topic) and cluster.leaders(companion) == cluster.leaders(topic),
        what="other leaders, the same for both",
    )
    for partition in range(3):
        publish(other, topic, 2, partition)
    work(other, topic, "workers", 6)
    eventually(lambda: committed(other, "workers", topic) == {0: 7, 1: 7, 2: 7}, what="offsets after the failover")
    eventually(lambda: [log_start(other, topic, each) for each in range(3)] == [7, 7, 7], what="starts")
    cluster.nodes[victim].start()
    eventually(
        lambda: cluster.replicas_in_sync(topic) == cluster.replicas_in_sync(companion) == [[1, 2, 3]] * 3,
        patience_s=90,
        what="everybody back in sync",
    )
    directory = cluster.nodes[victim].partition_dir(topic)
    eventually(lambda: (directory / f"{7:020}.log").exists(), what="a follower that follows the start")


def test_a_partition_that_is_moved_takes_its_queues_along(cluster: Cluster, topic: str) -> None:
    node = cluster.nodes[1]
    post(node, "topics", name=topic, partitions=1, replication_factor=1)
    companion = f"__queue.{topic}"
    publish(node, topic, 10)
    work(node, topic, "workers", 4)
    (source,) = cluster.leaders(topic)
    target = next(number for number in cluster.nodes if number != source)
    post(node, f"topics/{topic}/reassign", moves=[{"partition": 0, "replicas": [target]}])
    for name in (topic, companion):
        eventually(
            lambda name=name: cluster.topic(name)["partition_details"][0]["replicas"] == [target],
            what=f"a move of {name}",
        )
    assert cluster.leaders(topic) == cluster.leaders(companion) == [target]
    cluster.nodes[source].stop()
    left = receive(cluster.nodes[target], topic, "workers", 10)
    assert [message["offset"] for message in left] == [4, 5, 6, 7, 8, 9], "what was acked stays acked"
