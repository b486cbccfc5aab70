"""A bit of a leader's sealed segment flips under real consumers: each record reaches a group, and a queue group."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.cluster import Cluster, eventually, rest

COUNT = 3_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Nothing looks for damage but what readers ask for.
    settings = {"storage__scrub__interval_ms": 0, "storage__segment_bytes": 65_536}
    with Cluster(tmp_path_factory.mktemp("damaged-leader"), **settings) as cluster:
        yield cluster


def fill(cluster: Cluster, topic: str, factor: int = 3) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, factor)])[topic].result(60)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, "batch.num.messages": 10})
    for number in range(COUNT):
        producer.produce(topic, value=b"%d " % number + b"." * 100, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    eventually(
        lambda: all(len(part) == factor for part in cluster.replicas_in_sync(topic)), what="all replicas in sync"
    )


def flip(cluster: Cluster, topic: str, *, keeps_date: bool) -> int:
    """Flip a bit in the middle of the leader's first segment; the leader."""
    [leader] = cluster.leaders(topic)
    path: Path = min(cluster.nodes[leader].partition_dir(topic).glob("*.log"))
    assert path.with_suffix(".index").exists(), "it has to be sealed"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))
    if keeps_date:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return leader


def consume(cluster: Cluster, topic: str) -> list[int]:
    """All that a new group gets, in the order of offsets."""
    group = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"readers-of-{topic}",
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    group.subscribe([topic])
    found: list[int] = []

    def has_all() -> bool:
        got = [message for message in group.consume(500, 1.0) if message.error() is None]
        found.extend(int((message.value() or b"").split()[0]) for message in got)
        return len(found) >= COUNT

    try:
        eventually(has_all, what=f"{COUNT} records of {topic}", patience_s=90)
        group.commit(asynchronous=False)
    finally:
        group.close()
    return found


def work_off(cluster: Cluster, topic: str, number: int) -> set[int]:
    """All that a new queue group gets and acks, over REST, until nothing is left."""
    found: set[int] = set()
    with rest(cluster, number) as client:
        path = f"/v1/queues/{topic}"

        def is_done() -> bool:
            try:
                got = client.post(f"{path}/receive", json={"max": 500, "wait_ms": 500})
            except httpx.HTTPError:
                return False
            if got.status_code != 200:
                return False
            messages = got.json()["messages"]
            if messages:
                found.update(int(message["value"].split()[0]) for message in messages)
                client.post(f"{path}/ack", json={"receipts": [message["receipt"] for message in messages]})
            return len(found) >= COUNT

        eventually(is_done, what=f"{COUNT} messages of {topic}", patience_s=90)
    return found


@pytest.mark.parametrize("keeps_date", [False, True])
def test_a_consumer_group_gets_everything_although_its_leader_is_damaged(cluster: Cluster, keeps_date: bool) -> None:
    topic = f"orders-{int(keeps_date)}"
    fill(cluster, topic)
    damaged = flip(cluster, topic, keeps_date=keeps_date)
    if keeps_date:  # damaged while it was down
        cluster.nodes[damaged].kill()
        cluster.nodes[damaged].start()
    assert consume(cluster, topic) == list(range(COUNT))
    eventually(lambda: len(cluster.replicas_in_sync(topic)[0]) == 3, what="healed")


def test_a_queue_group_gets_everything_although_its_leader_is_damaged(cluster: Cluster) -> None:
    fill(cluster, "jobs")
    damaged = flip(cluster, "jobs", keeps_date=False)
    assert work_off(cluster, "jobs", damaged) == set(range(COUNT))
    eventually(lambda: len(cluster.replicas_in_sync("jobs")[0]) == 3, what="healed")


def test_what_no_replica_has_is_told_everywhere(cluster: Cluster) -> None:
    fill(cluster, "scratch", factor=1)
    node = flip(cluster, "scratch", keeps_date=False)
    with rest(cluster, node) as client:
        offset, values = 0, []

        def is_at_the_end() -> bool:
            nonlocal offset
            got = client.get("/v1/topics/scratch/messages", params={"offset": offset, "limit": 1000})
            if got.status_code != 200:
                assert got.status_code == 503, got.text
                return False
            page = json.loads(got.text)
            values.extend(message["value"] for message in page["messages"])
            offset = page["next_offset"]
            return offset >= COUNT

        eventually(is_at_the_end, what="the end of what is left", patience_s=60)
        [lost] = cluster.topic("scratch")["partition_details"][0]["lost"]
        assert len(values) == COUNT - (lost["next_offset"] - lost["first_offset"])
        assert cluster.ask("/v1/cluster")["lossy_partitions"] == [{"topic": "scratch", "partition": 0}]
        assert "penstock_log_lost_offsets" in client.get("/metrics").text
        assert any(each["code"] == "lost_records" for each in client.get("/readyz").json()["warnings"])
