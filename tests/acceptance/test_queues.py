"""Work queues through deaths: a node killed again and again under workers, and a cluster that loses its leaders."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import httpx
import pytest
from tests.support.cluster import Cluster
from tests.support.node import Node
from tests.support.queue_workers import Ledger, Workers, await_all, publish_until_told

KILLS = int(os.environ.get("PENSTOCK_QUEUE_KILLS", "4"))
_LEASE_S = 3.0


def _check(ledger: Ledger, published: list[str]) -> None:
    assert set(published) <= ledger.acked, "a message was lost"
    assert ledger.returned == [], "a message came again although its ack had been answered"
    assert ledger.shared == [], "a message had two live leases"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_killed_under_workers_loses_nothing_and_brings_nothing_back(tmp_path: Path) -> None:
    random.seed(5)
    with Node(tmp_path) as node:
        urls = [node.http_url]
        topic = {"name": "jobs", "partitions": 2, "configs": {"queue.tries": "0"}}
        assert httpx.post(f"{node.http_url}/v1/topics", json=topic, timeout=60).status_code == 201
        ledger = Ledger()
        workers = Workers(urls, "jobs", ledger, timeout_s=_LEASE_S).start(4)
        published: list[str] = []
        try:
            for life in range(KILLS):
                values = [f"{life}-{at}" for at in range(200)]
                publish_until_told(urls, "jobs", values)
                published += values
                time.sleep(random.uniform(0.1, 0.5))
                node.kill()
                node.restart()
            assert await_all(lambda: set(published) <= ledger.acked, 120), node.log_tail()
        finally:
            workers.stop()
        _check(ledger, published)
        stats = httpx.get(f"{node.http_url}/v1/queues/jobs", timeout=60).json()
        assert "workers" in str(stats)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_that_loses_leaders_hands_everything_out_once(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        urls = [node.http_url for node in cluster.nodes.values()]
        topic = {
            "name": "jobs",
            "partitions": 3,
            "replication_factor": 3,
            "configs": {"queue.tries": "0", "min.insync.replicas": "2"},
        }
        assert httpx.post(f"{urls[0]}/v1/topics", json=topic, timeout=60).status_code == 201
        ledger = Ledger()
        workers = Workers(urls, "jobs", ledger, timeout_s=_LEASE_S).start(4)
        published: list[str] = []
        try:
            for number in (1, 2):
                values = [f"{number}-{at}" for at in range(200)]
                publish_until_told(urls, "jobs", values)
                published += values
                cluster.nodes[number].kill()
                more = [f"{number}-more-{at}" for at in range(100)]
                publish_until_told(urls, "jobs", more)
                published += more
                cluster.nodes[number].restart()
            assert await_all(lambda: set(published) <= ledger.acked, 120), cluster.nodes[3].log_tail()
        finally:
            workers.stop()
        _check(ledger, published)
