"""What the benchmark measures: a broker it can start on an empty directory, and stop.

A `Target` is one broker with one durability setting; a `Node` is one running instance of it. Workloads see nothing
else, so that no row can treat one broker differently from another.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.process import BrokerError, BrokerProcess, Memory, answers_api_versions, free_port

REPO = Path(__file__).resolve().parent.parent
CACHE = REPO / ".cache"


@dataclass(frozen=True, slots=True)
class Node:
    """A broker that is up: where clients reach it, where its data is, and how long it took to get there."""

    kafka_port: int
    data_dir: Path
    process: Process
    ready_s: float
    other_ports: Sequence[int] = ()
    """Of the other nodes, where it is one of several."""

    @property
    def brokers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in (self.kafka_port, *self.other_ports))

    @property
    def replicas(self) -> int:
        """How many copies of each partition a topic here has."""
        return 1 + len(self.other_ports)


class Process(Protocol):
    """What is asked of the process of a node, or of those of several."""

    @property
    def is_running(self) -> bool: ...

    def cpu_seconds(self) -> float: ...

    def memory(self) -> Memory: ...

    def log_tail(self, lines: int = 15) -> str: ...

    def stop(self, patience_s: float = 30) -> None: ...


class Target(Protocol):
    """A broker with one durability setting."""

    @property
    def name(self) -> str:
        """`penstock`, `kafka`, or one of them with `+` and the variant."""

    @property
    def description(self) -> str:
        """The durability setting in words, for the report."""

    @property
    def nodes(self) -> int:
        """How many nodes it is."""

    def prepare(self) -> str:
        """Fetch or build whatever `start` needs; the version, or BrokerError."""

    def start(self, directory: Path) -> Node:
        """Start on an empty `directory`, wait until ready, or raise BrokerError."""


@dataclass(frozen=True, slots=True)
class Penstock:
    """Penstock as a user would start it; `settings` are environment settings over its defaults."""

    name: str
    description: str
    settings: Mapping[str, str] = field(default_factory=dict)
    command: Path = REPO / ".venv" / "bin" / "penstock"
    ready_limit_s: float = 30
    nodes: int = 1

    def prepare(self) -> str:
        if not self.command.exists():
            raise BrokerError(f"{self.command} is absent: ./dev setup installs it")
        return importlib.metadata.version("penstock-mq")

    def start(self, directory: Path) -> Node:
        kafka, http = free_port(), free_port()
        data = directory / "data"
        command = [str(self.command), "serve", "--node-id", "1", "--data-dir", str(data)]
        command += ["--kafka", f"127.0.0.1:{kafka}", "--http", f"127.0.0.1:{http}", "--grpc", "127.0.0.1:0"]
        # Like everybody's Python it keeps what it compiled, so that only the very first start pays for it.
        left_out = ("PENSTOCK_", "PYTHONDONTWRITEBYTECODE")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
        process = BrokerProcess(command, directory / "broker.log", {**inherited, **self.settings}, directory)
        try:
            ready_s = process.wait_until(lambda: is_ready(http) and answers_api_versions(kafka), self.ready_limit_s)
        except BaseException:
            process.stop()
            raise
        return Node(kafka, data, process, ready_s)


def is_ready(http_port: int) -> bool:
    """Whether `GET /readyz` says 200."""
    url = f"http://127.0.0.1:{http_port}/readyz"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
        return bool(answer.status == 200)
    return False


def penstock_targets() -> list[Target]:
    return [
        Penstock("penstock", "as shipped: acks=all is fsynced before the ack, group commit"),
        Penstock("penstock+nofsync", "storage.fsync=none", {"PENSTOCK_STORAGE__FSYNC": "none"}),
    ]
