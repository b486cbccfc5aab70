"""The Python client and a cluster: a node that dies is passed over, and nothing is lost or twice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Cluster, eventually

import penstock
from penstock import AsyncClient, Client, QueueMessage

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, 3) as running:
        yield running


def urls(cluster: Cluster) -> list[str]:
    return [node.http_url for node in cluster.nodes.values()]


def unsettled(client: Client, topic: str) -> int:
    found = client.queue(topic).stats()
    return found.ready + found.in_flight + found.waiting


def test_publishing_goes_on_with_the_other_nodes(cluster: Cluster, topic: str) -> None:
    async def work() -> None:
        async with AsyncClient(*urls(cluster), delivery_timeout=60) as client:
            await client.create_topic(topic, partitions=3, replication_factor=3)
            futures: list[asyncio.Future[penstock.Published]] = []
            is_over = asyncio.Event()

            async def produce() -> None:
                while not is_over.is_set():
                    futures.append(await client.send(topic, str(len(futures)), key=str(len(futures) % 20)))
                    await asyncio.sleep(0.002)

            producing = asyncio.create_task(produce())
            await asyncio.sleep(0.5)
            await asyncio.to_thread(cluster.nodes[1].kill)
            await asyncio.sleep(1.5)
            await asyncio.to_thread(cluster.nodes[1].restart)
            is_over.set()
            await producing
            await client.flush()
            assert [future.exception() for future in futures if future.exception()] == []
            found = [message.text for index in range(3) async for message in client.read(topic, index)]
            assert Counter(found) == Counter(str(number) for number in range(len(futures)))

    asyncio.run(asyncio.wait_for(work(), 100))


def test_workers_go_on_with_the_other_nodes(cluster: Cluster, topic: str) -> None:
    calls: Counter[str] = Counter()

    @penstock.worker(topic, visibility_timeout=5, concurrency=4)
    def handle(message: QueueMessage) -> None:
        calls[message.text] += 1
        time.sleep(0.005)

    app = penstock.App(*urls(cluster), workers=[handle])
    thread = threading.Thread(target=app.run)
    with Client(*urls(cluster), delivery_timeout=60) as client:
        client.create_topic(topic, partitions=3, replication_factor=3)
        client.publish_many(topic, [penstock.Draft(str(number), key=str(number)) for number in range(600)])
        thread.start()
        while len(calls) < 100:
            time.sleep(0.02)
        cluster.nodes[1].kill()
        deadline = time.monotonic() + 60
        while len(calls) < 600 and time.monotonic() < deadline:
            time.sleep(0.05)
        cluster.nodes[1].restart()
        eventually(lambda: unsettled(client, topic) == 0)  # what was leased by the node that died comes once more
        app.stop()
        thread.join(60)
        assert len(calls) == 600
        assert client.queue(topic).receive(10, wait=1) == []
