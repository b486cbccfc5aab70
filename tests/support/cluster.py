"""A cluster of real node processes on loopback, for tests that kill, wipe, add and remove nodes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.support.node import Node, free_port


class ClusterNode(Node):
    """A node with an internal address."""

    def __init__(self, directory: Path, node_id: int, **settings: object) -> None:
        super().__init__(directory, node_id=node_id, **settings)
        self.internal = f"127.0.0.1:{free_port()}"

    def wipe(self) -> None:
        """Lose the disk."""
        assert not self.is_running, "a running node has its disk"
        shutil.rmtree(self.data_dir)


class Cluster:
    """Nodes 1 to ``count`` that form a cluster; more can join."""

    def __init__(self, directory: Path, count: int = 3, **settings: object) -> None:
        self._directory = directory
        self._settings = settings
        self.nodes = {number: self._make(number) for number in range(1, count + 1)}
        peers = ",".join(f"{node.node_id}@{node.internal}" for node in self.nodes.values())
        for node in self.nodes.values():
            node.settings = {**settings, "broker__internal": node.internal, "cluster__peers": peers}

    def _make(self, number: int) -> ClusterNode:
        return ClusterNode(self._directory / f"node-{number}", number)

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    @property
    def running(self) -> list[ClusterNode]:
        return [node for node in self.nodes.values() if node.is_running]

    def start(self) -> Cluster:
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.await_ready()
        return self

    def add(self, number: int) -> ClusterNode:
        """Start one more node, which joins by the address of one that runs."""
        node = self._make(number)
        node.settings = {
            **self._settings,
            "broker__internal": node.internal,
            "cluster__join": self.running[0].internal,
        }
        self.nodes[number] = node
        node.start()
        return node

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        for node in self.running:
            node.kill()

    # -- looking ------------------------------------------------------------------------------------------------------

    def ask(self, path: str, number: int | None = None) -> Any:
        """The JSON that a node, or any that runs, answers to a GET."""
        node = self.running[0] if number is None else self.nodes[number]
        with urllib.request.urlopen(f"{node.http_url}{path}", timeout=30) as answer:
            return json.load(answer)

    def topic(self, name: str, number: int | None = None) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(f"/v1/topics/{name}", number)
        return found

    def leaders(self, name: str) -> list[int]:
        return [partition["leader"] for partition in self.topic(name)["partition_details"]]

    def replicas_in_sync(self, name: str) -> list[list[int]]:
        return [sorted(partition["in_sync"]) for partition in self.topic(name)["partition_details"]]


def known(cluster: Cluster, number: int) -> list[str]:
    """The topics that a node knows of."""
    return [found["name"] for found in cluster.ask("/v1/topics", number)["topics"]]


def led_by(cluster: Cluster, topic: str, number: int) -> int:
    """A partition that this node leads."""
    return cluster.leaders(topic).index(number)


def rest(cluster: Cluster, number: int) -> httpx.Client:
    """A client of one node."""
    return httpx.Client(base_url=cluster.nodes[number].http_url, timeout=60)


def command(cluster: Cluster, *args: object, number: int = 1) -> subprocess.CompletedProcess[str]:
    """What the command line says of a cluster, asked at one node."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**inherited, "PENSTOCK_URL": cluster.nodes[number].http_url, "NO_COLOR": "1", "COLUMNS": "120"},
    )


def eventually(check: Callable[[], bool], patience_s: float = 60.0, what: str = "it") -> None:
    """Wait until ``check`` holds; errors count as not yet."""
    deadline = time.monotonic() + patience_s
    last: Exception | None = None
    while time.monotonic() < deadline:
        try:
            if check():
                return
        except Exception as error:  # the cluster may be on its way
            last = error
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come true within {patience_s:.0f} s" + (f": {last!r}" if last else ""))


def numbered(prefix: str, count: int) -> Iterator[tuple[str, str]]:
    """Keys and values that can be told apart."""
    return ((f"{prefix}-{at % 7}", f"{prefix}-{at}") for at in range(count))
