"""``penstock serve --shards``: one host, several processes, one cluster; a shard that dies is started again."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.clients.confluent import ConfluentClient
from tests.support.cluster import eventually
from tests.support.node import Node


def nodes_up(node: Node) -> list[int]:
    with urllib.request.urlopen(f"{node.http_url}/v1/nodes", timeout=60) as answer:
        listed: list[dict[str, Any]] = json.load(answer)["nodes"]
    return [each["node_id"] for each in listed if each["status"] == "up"]


def test_shards_share_partitions_and_one_that_dies_comes_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.http_port = node.kafka_port + 10 if node.kafka_port < 65_000 else node.kafka_port - 10
    node.grpc_port = node.kafka_port + 20 if node.kafka_port < 65_000 else node.kafka_port - 20
    node.arguments = ("--shards", "2")
    with node:
        eventually(lambda: nodes_up(node) == [1, 1001], 90, "two shards")
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic("t", 4)])["t"].result(60)
        leaders = {each.leader for each in admin.list_topics("t", timeout=60).topics["t"].partitions.values()}
        assert leaders == {1, 1001}
        producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True})
        for number in range(40):
            producer.produce("t", value=f"message-{number}", partition=number % 4)
        assert producer.flush(60) == 0
        assert node.pid is not None
        shards = psutil.Process(node.pid).children()
        assert len(shards) == 2
        os.kill(shards[1].pid, signal.SIGKILL)
        eventually(lambda: len(psutil.Process(node.pid).children()) == 2, 90, "a new process")
        eventually(lambda: nodes_up(node) == [1, 1001], 90, "two shards again")
        client = ConfluentClient(node.bootstrap)
        eventually(lambda: sum(client.bounds("t", index)[1] for index in range(4)) == 40, 60, "every message")
        client.close()
        assert node.stop() == 0
