"""Dead letters while nodes are killed: each message is buried once, and sent back once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.cluster import Cluster, eventually
from tests.support.node import Node

MESSAGES = 600
PARTITIONS = 2


class Consumer:
    """Receives and rejects everything, by whichever node answers, in a thread of its own."""

    def __init__(self, urls: list[str], topic: str) -> None:
        self._urls = urls
        self._topic = topic
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.is_over = threading.Event()

    def __enter__(self) -> Consumer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.is_over.set()
        self._thread.join(60)

    def _work(self) -> None:
        turn = 0
        while not self.is_over.is_set():
            turn += 1
            try:
                with httpx.Client(base_url=self._urls[turn % len(self._urls)], timeout=10) as client:
                    self._serve(client)
            except (httpx.HTTPError, KeyError):
                time.sleep(0.05)

    def _serve(self, client: httpx.Client) -> None:
        while not self.is_over.is_set():
            body = {"group": "g", "max": 7, "wait_ms": 500, "visibility_timeout_ms": 2_000}
            messages = client.post(f"/v1/queues/{self._topic}/receive", json=body).json()["messages"]
            for message in messages:
                answer = {"group": "g", "receipts": [message["receipt"]], "reason": f"reason {message['offset'] % 3}"}
                client.post(f"/v1/queues/{self._topic}/reject", json=answer).raise_for_status()


def ask(urls: list[str], path: str) -> Any:
    """What some node answers."""
    for url in urls:
        try:
            answer = httpx.get(f"{url}{path}", timeout=60)
            if answer.status_code == 200:
                return answer.json()
        except httpx.HTTPError:
            continue
    raise AssertionError(f"nobody answers {path}")


def prepare(urls: list[str], topic: str, **fields: Any) -> None:
    httpx.post(f"{urls[0]}/v1/topics", json={"name": topic, "partitions": PARTITIONS, **fields}).raise_for_status()
    for begin in range(0, MESSAGES, 100):
        messages = [{"value": str(at), "partition": at % PARTITIONS} for at in range(begin, begin + 100)]
        httpx.post(f"{urls[0]}/v1/topics/{topic}/batch", json={"messages": messages}, timeout=60).raise_for_status()


def values(urls: list[str], topic: str) -> Counter[str]:
    """Everything in a topic."""
    found: Counter[str] = Counter()
    for partition in range(PARTITIONS):
        offset = 0
        while True:
            path = f"/v1/topics/{topic}/messages?partition={partition}&offset={offset}&limit=1000"
            page = ask(urls, path)
            found.update(message["value"] for message in page["messages"])
            if page["next_offset"] == offset or offset >= page["high_watermark"]:
                break
            offset = page["next_offset"]
    return found


def is_all_buried(urls: list[str], topic: str) -> bool:
    (group,) = ask(urls, f"/v1/queues/{topic}")["groups"]
    return sum(at["committed"] for at in group["partitions"]) == MESSAGES


def check_buried_once(urls: list[str], topic: str) -> None:
    found = values(urls, f"{topic}.dlq")
    assert found == {str(at): 1 for at in range(MESSAGES)}, [value for value, times in found.items() if times > 1]


def redrive_while(urls: list[str], topic: str, kill: Callable[[], None]) -> None:
    """Send everything back while nodes are killed; each is sent once."""
    body = {"rate": MESSAGES / 6}
    job = httpx.post(f"{urls[0]}/v1/queues/{topic}/redrive", json=body, timeout=60).json()["redrive"]
    for _ in range(3):
        time.sleep(0.8)
        kill()

    def is_over() -> bool:
        return bool(ask(urls, f"/v1/queues/{topic}/redrives/{job['id']}")["state"] == "done")

    eventually(is_over, 60, "the redrive")
    done = ask(urls, f"/v1/queues/{topic}/redrives/{job['id']}")
    assert (done["moved"], done["failed"]) == (MESSAGES, 0)
    assert values(urls, topic) == {str(at): 2 for at in range(MESSAGES)}
    page = ask(urls, f"/v1/queues/{topic}/dead-letters")
    assert page["dead_letters"] == []


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_node_that_is_killed_again_and_again_buries_and_sends_back_each_message_once(tmp_path: Path) -> None:
    node = Node(tmp_path).start()
    urls = [node.http_url]

    def kill() -> None:
        node.kill()
        node.start()

    try:
        prepare(urls, "t")
        with Consumer(urls, "t"):
            for _ in range(6):
                time.sleep(0.7)
                kill()
            eventually(lambda: is_all_buried(urls, "t"), 60, "all buried")
        check_buried_once(urls, "t")
        redrive_while(urls, "t", kill)
    finally:
        node.kill()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_cluster_whose_leaders_are_killed_buries_and_sends_back_each_message_once(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        urls = [node.http_url for node in cluster.nodes.values()]
        prepare(urls, "t", replication_factor=3, configs={"min.insync.replicas": "2"})
        whole = [1, 2, 3]

        def kill() -> None:
            """Kill whoever leads the first partition; the next one is killed when this one is back."""
            leader = cluster.leaders("t")[0]
            cluster.nodes[leader].kill()
            time.sleep(1.5)
            cluster.nodes[leader].start()
            eventually(lambda: all(each == whole for each in cluster.replicas_in_sync("t")), 60, "in sync")

        with Consumer(urls, "t"):
            for _ in range(2):
                time.sleep(0.7)
                kill()
            eventually(lambda: is_all_buried(urls, "t"), 60, "all buried")
        check_buried_once(urls, "t")
        redrive_while(urls, "t", kill)
