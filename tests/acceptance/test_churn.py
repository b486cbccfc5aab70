"""Connections, topics and groups that come and go leave nothing behind: descriptors, threads and memory stay flat.

Everyday this is a look of a few seconds. ``./dev soak tests/acceptance/test_churn.py`` runs it for ten minutes, or for
PENSTOCK_CHURN_MINUTES of them, and prints what it measured.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from statistics import median
from urllib.request import Request, urlopen

import psutil
import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.clients.confluent import ConfluentClient
from tests.support.clients.contract import Message
from tests.support.cluster import eventually
from tests.support.node import Node

from penstock import Client

CONNECTIONS = 20
DESCRIPTORS_MORE = 12  # connections and files that are just being closed, and threads' own
MIB = 1 << 20


@dataclass(frozen=True)
class Use:
    """What the node's process has at a moment."""

    descriptors: int
    deleted: int  # of those, files that are deleted
    threads: int
    rss_mib: float


def use_of(node: Node) -> Use:
    process = psutil.Process(node.pid)
    links = []
    for fd in os.listdir(f"/proc/{node.pid}/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/{node.pid}/fd/{fd}"))
    deleted = sum(link.endswith("(deleted)") and str(node.data_dir) in link for link in links)
    return Use(len(links), deleted, process.num_threads(), process.memory_info().rss / MIB)


def delete(url: str) -> None:
    with urlopen(Request(url, method="DELETE"), timeout=60) as answer:
        assert answer.status == 204


def go_round(node: Node, number: int) -> None:
    """A topic's life: made, written, read by a group and as a queue, deleted; with connections that say nothing."""
    topic = f"churn-{number}"
    with ExitStack() as opened:
        for port in (node.kafka_port, node.http_port):
            for _ in range(CONNECTIONS // 2):
                opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        with Client(node.http_url) as client:
            client.create_topic(topic, partitions=3)
            client.publish_many(topic, [f"message {each}" for each in range(30)])
            with client.consume(topic, group=f"group-{number}") as consumer:
                assert next(consumer).text.startswith("message")
                consumer.commit()
            queue = client.queue(topic, "queue")
            queue.ack(queue.receive(30, wait=10))
        if number % 10 == 0:
            kafka = ConfluentClient(node.bootstrap)
            kafka.produce(topic, [Message(b"value")] * 10)
            kafka.add_partitions(topic, 5)
    delete(f"{node.http_url}/v1/groups/group-{number}")
    delete(f"{node.http_url}/v1/topics/{topic}")


def settled(node: Node, limit: int) -> Use:
    """What the node uses once it has put away what the rounds left, which has to be within the limit."""
    eventually(lambda: use_of(node).deleted == 0 and use_of(node).descriptors <= limit, 60.0)
    return use_of(node)


def start(make_node: NodeMaker) -> Node:
    return make_node(groups__initial_delay_ms=0, storage__segment_bytes=4096, storage__fsync="none").start()


def test_a_deleted_topic_leaves_no_descriptor_and_no_thread(make_node: NodeMaker) -> None:
    node = start(make_node)
    for number in range(3):
        go_round(node, number)
    before = settled(node, 10_000)
    for number in range(3, 15):
        go_round(node, number)
    after = settled(node, before.descriptors + DESCRIPTORS_MORE)
    assert after.threads <= before.threads + 8, "threads are made up to the size of their pools, and no more"
    assert not list((node.data_dir / "logs").glob("*churn*"))


@pytest.mark.soak
def test_ten_minutes_of_churn_leave_everything_flat(make_node: NodeMaker) -> None:
    minutes = float(os.environ.get("PENSTOCK_CHURN_MINUTES", "10"))
    node = start(make_node)
    began = time.monotonic()
    number, uses = 0, []
    before = None
    while (passed_s := time.monotonic() - began) < minutes * 60:
        go_round(node, number)
        number += 1
        if before is None and passed_s > minutes * 60 / 6:
            before = settled(node, 10_000)
        if before is not None:
            uses.append(use_of(node))
    assert before is not None
    after = settled(node, before.descriptors + DESCRIPTORS_MORE)
    third = len(uses) // 3
    early, late = (median(use.rss_mib for use in part) for part in (uses[:third], uses[-third:]))
    print(
        f"{number} rounds in {minutes:g} minutes; before {before}, after {after}; RSS {early:.1f} then {late:.1f} MiB"
    )
    assert after.threads <= before.threads + 8
    assert late <= early * 1.1 + 8, "memory grows"


def test_a_node_that_is_out_of_descriptors_recovers_by_itself(make_node: NodeMaker) -> None:
    """Connections take all that there are: records that were acked stay, the log is quiet, and it goes on after."""
    node = start(make_node)
    with Client(node.http_url) as client:
        client.create_topic("orders", partitions=1)
        client.publish("orders", "before")
    limit = use_of(node).descriptors + 24
    hard = resource.prlimit(node.pid or 0, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(node.pid or 0, resource.RLIMIT_NOFILE, (limit, hard))
    with ExitStack() as opened:
        for _ in range(80):
            opened.enter_context(socket.create_connection(("127.0.0.1", node.kafka_port)))
        eventually(lambda: use_of(node).descriptors >= limit, 60.0)
        eventually(lambda: "have to wait" in node.log_text, 60.0)
        size = node.log_path.stat().st_size
        time.sleep(1.0)  # a loop that spins writes megabytes in that time
        assert node.log_path.stat().st_size - size < 20_000
    resource.prlimit(node.pid or 0, resource.RLIMIT_NOFILE, (hard, hard))
    kafka = ConfluentClient(node.bootstrap)
    kafka.produce("orders", [Message(b"after")] * 100)
    assert node.is_running
    assert "Nothing more is written there" not in node.log_text
