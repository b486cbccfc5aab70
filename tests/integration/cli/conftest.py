"""Real processes: a node, and commands that talk to it."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.node import free_port

READY_LIMIT_S = 90.0


def clean_environ(**extra: str) -> dict[str, str]:
    """The environment without Penstock settings of the user who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**kept, "NO_COLOR": "1", "COLUMNS": "120", **extra}


def penstock(
    *args: object, stdin: bytes | None = None, cwd: Path | None = None, timeout: float = 60, **environ: str
) -> subprocess.CompletedProcess[bytes]:
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, args)],
        input=b"" if stdin is None else stdin,
        capture_output=True,
        env=clean_environ(**environ),
        cwd=cwd,
        timeout=timeout,
        check=False,
    )


@dataclass(slots=True)
class Node:
    """A node in a process of its own."""

    process: subprocess.Popen[bytes]
    kafka_port: int
    http_port: int
    data_dir: Path
    log: Path
    ready_s: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def run(self, *args: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """A command against this node."""
        return penstock(*args, stdin=stdin, PENSTOCK_URL=self.url)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def wait_ready(self) -> None:
        started = time.perf_counter()
        while time.perf_counter() - started < READY_LIMIT_S:
            assert self.process.poll() is None, self.log.read_text()
            if _is_ready(self.http_port):
                self.ready_s = time.perf_counter() - started
                return
            time.sleep(0.005)
        raise AssertionError(f"not ready within {READY_LIMIT_S} s: {self.log.read_text()}")


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    with suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    return False


StartNode = Callable[..., Node]


@contextmanager
def nodes(directory: Path) -> Iterator[StartNode]:
    """Starts nodes, and ends what is left running."""
    started: list[Node] = []

    def start(*args: object, data_dir: Path | None = None, command: str = "serve", **environ: str) -> Node:
        data_dir = data_dir or directory / "data"
        kafka_port, http_port = free_port(), free_port()
        log = directory / f"node-{len(started)}.log"
        listeners = ["--kafka", f"127.0.0.1:{kafka_port}", "--http", f"127.0.0.1:{http_port}", "--grpc", "127.0.0.1:0"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock", command, "--data-dir", data_dir, *listeners, *map(str, args)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean_environ(
                    **{"PENSTOCK_STORAGE__HOUSEKEEPING_INTERVAL_MS": "1h", **environ}
                ),  # dates may be old
                cwd=directory,
            )
        node = Node(process, kafka_port, http_port, data_dir, log)
        started.append(node)
        node.wait_ready()
        return node

    try:
        yield start
    finally:
        for node in started:
            if node.process.poll() is None:
                node.process.kill()
            node.process.wait()


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    with nodes(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for all the tests of a module."""
    with nodes(tmp_path_factory.mktemp("node")) as start:
        yield start()


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs one command that needs no node, or whose node is somewhere else."""
    return penstock
