"""Consume, process, produce, exactly once, with queues: three nodes, workers that talk to any of them, nodes killed."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.cluster import Cluster, eventually

ORDERS_A_ROUND = 100
PARTITIONS = 4
WORKERS = 3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


class Worker(threading.Thread):
    """Takes orders and publishes a result for each, both in one transaction; what fails in any way it leaves."""

    def __init__(self, urls: list[str], is_done: threading.Event) -> None:
        super().__init__(daemon=True)
        self._urls = itertools.cycle(urls)
        self._is_done = is_done
        self.commits = 0
        self.failures: Counter[str] = Counter()

    def run(self) -> None:
        while not self._is_done.is_set():
            try:
                with httpx.Client(base_url=next(self._urls), timeout=20) as client:
                    self._work(client)
            except (httpx.HTTPError, AssertionError) as error:
                self.failures[type(error).__name__] += 1
                time.sleep(0.05)

    def _work(self, client: httpx.Client) -> None:
        body = {"max": 7, "wait_ms": 500, "visibility_timeout_ms": 5_000}
        messages = answer(client.post("/v1/queues/orders/receive", json=body))["messages"]
        if not messages:
            return
        name = answer(client.post("/v1/transactions", json={"timeout_ms": 8_000}))["transaction"]
        try:
            receipts = [message["receipt"] for message in messages]
            acked = client.post(f"/v1/transactions/{name}/ack", json={"receipts": receipts})
            assert acked.status_code == 200, acked.text
            results = [{"value": message["value"], "key": message["value"]} for message in messages]
            into = {"Penstock-Transaction": name}
            published = client.post("/v1/topics/results/batch", json={"messages": results}, headers=into)
            assert published.status_code in (200, 201), published.text
        except (httpx.HTTPError, AssertionError):
            client.post(f"/v1/transactions/{name}/abort")
            raise
        answer(client.post(f"/v1/transactions/{name}/commit", json={}, headers={"Idempotency-Key": name}))
        self.commits += 1


def answer(response: httpx.Response) -> Any:
    assert response.status_code < 300, response.text
    return response.json()


def results(client: httpx.Client) -> Counter[str]:
    """Every committed result."""
    found: Counter[str] = Counter()
    for partition in range(PARTITIONS):
        offset = 0
        while True:
            query = {"partition": partition, "offset": offset, "limit": 500}
            page = answer(client.get("/v1/topics/results/messages", params=query))
            found.update(message["value"] for message in page["messages"])
            if page["next_offset"] == offset:
                break
            offset = page["next_offset"]
    return found


def is_all_acked(client: httpx.Client) -> bool:
    groups = answer(client.get("/v1/queues/orders"))["groups"]
    partitions = [at for group in groups for at in group["partitions"]]
    return len(partitions) == PARTITIONS and all(at["committed"] == at["end"] for at in partitions)


def publish_orders(client: httpx.Client, at: int) -> None:
    orders = [{"value": f"order-{each}", "key": f"{each}"} for each in range(at, at + ORDERS_A_ROUND)]
    answer(client.post("/v1/topics/orders/batch", json={"messages": orders}))


def test_every_order_has_one_result_though_nodes_die(cluster: Cluster) -> None:
    urls = [node.http_url for node in cluster.nodes.values()]
    with httpx.Client(base_url=urls[0], timeout=60) as client:
        for topic in ("orders", "results"):
            configs = {"queue.tries": 0, "queue.retry.base.ms": 100} if topic == "orders" else {}
            made = {"name": topic, "partitions": PARTITIONS, "replication_factor": 3, "configs": configs}
            answer(client.post("/v1/topics", json=made))
        is_done = threading.Event()
        workers = [Worker(urls[at:] + urls[:at], is_done) for at in range(WORKERS)]
        for worker in workers:
            worker.start()
        published = 0
        for number in (2, 3):
            # Orders of its own for every death: those before may all be done by the time the last victim is back.
            before = sum(worker.commits for worker in workers)
            publish_orders(client, published)
            published += ORDERS_A_ROUND
            eventually(lambda before=before: sum(each.commits for each in workers) >= before + 3, 120)  # type: ignore[misc]
            cluster.nodes[number].kill()
            time.sleep(2)
            cluster.nodes[number].start()
        publish_orders(client, published)
        published += ORDERS_A_ROUND
        eventually(lambda: is_all_acked(client), 150)
        is_done.set()
        for worker in workers:
            worker.join(60)
        counts = results(client)
    assert counts == Counter({f"order-{at}": 1 for at in range(published)})
