"""The cluster under test: nodes as processes that can be started, killed, paused and read, wherever they live.

A node keeps its place over restarts. All nodes are started from the main thread, because the kernel ends a child with
the thread that started it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.chaos.disks import Disk
from bench.chaos.login import Login
from bench.chaos.machine import FAKETIME, Machine, die_with_parent, enter_namespace
from bench.chaos.network import WATCHER, Network, address_of, namespace_of
from bench.chaos.software import Place, Software
from bench.process import free_port

IMAGE_MIB = 1024
READY_LIMIT_S = 60.0
STOP_LIMIT_S = 40.0
_KAFKA_PORT, _HTTP_PORT, _INTERNAL_PORT = 9092, 8080, 9093


class ClusterError(Exception):
    """A node did not do what was asked of it; the message ends with its last log lines."""


class Node:
    """One node: a place, perhaps a disk of its own, and a process while it runs."""

    def __init__(self, place: Place, disk: Disk | None, has_fake_time: bool, login: Callable[[], Login]) -> None:
        self.place = place
        self.disk = disk
        self.log_path = place.scratch / "node.log"
        self.is_paused = False
        self._clock_path = place.scratch / "clock"
        self._has_fake_time = has_fake_time
        self._login = login
        self._child: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"node {self.number}"

    @property
    def number(self) -> int:
        return self.place.number

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        assert self._child is not None, "the node was never started"
        return self._child.pid

    def launch(self, software: Software, first: Sequence[Place], *, in_namespace: bool) -> None:
        """Start the process and return at once."""
        assert not self.is_running, f"{self} runs already"
        command, environment = software.command(self.place, first)
        if self._has_fake_time:
            self.set_clock(0)
            environment = {
                **environment,
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self._clock_path),
                "FAKETIME_CACHE_DURATION": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }
        with self.log_path.open("ab") as out:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.place.scratch,
                preexec_fn=enter_namespace(namespace_of(self.number)) if in_namespace else die_with_parent,
            )
        self.is_paused = False

    def kill(self) -> None:
        """``kill -9``."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self.is_paused = False

    def terminate(self, limit_s: float = STOP_LIMIT_S) -> int:
        """SIGTERM; the exit code. A node that does not end in time is killed, and that is an error."""
        assert self._child is not None, "the node was never started"
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            return self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ClusterError(f"{self} did not stop within {limit_s:.0f} s\n{self.log_tail()}") from None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False

    def set_clock(self, offset_s: int) -> None:
        """How far this node's wall clock is off."""
        fresh = self._clock_path.with_suffix(".new")
        fresh.write_text(f"{offset_s:+d}s\n")
        fresh.rename(self._clock_path)

    def log_tail(self, lines: int = 15) -> str:
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def is_ready(self, watcher: str | None) -> bool:
        """Whether ``/readyz`` says so."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask("GET", "/readyz", watcher, timeout_s=1.0)[0] == 200
        return False

    def ask(self, method: str, path: str, watcher: str | None, timeout_s: float = 10.0) -> tuple[int, bytes]:
        """Status and body of an answer over HTTP; OSError or HTTPException if there is none."""
        source = (watcher, 0) if watcher else None
        place, login = self.place, self._login()
        connection = http.client.HTTPConnection(place.host, place.http_port, timeout=timeout_s, source_address=source)
        if (context := login.context) is not None:
            connection = http.client.HTTPSConnection(
                place.host, place.http_port, timeout=timeout_s, source_address=source, context=context
            )
        with contextlib.closing(connection):
            connection.request(method, path, headers=login.headers)
            answer = connection.getresponse()
            return answer.status, answer.read()


class Cluster:
    """Several nodes of one software on one machine."""

    def __init__(self, software: Software, machine: Machine, directory: Path, image_mib: int = IMAGE_MIB) -> None:
        self.software = software
        self.machine = machine
        self.directory = directory
        self.nodes: dict[int, Node] = {}
        self.first: list[Place] = []
        self.network = Network() if machine.has_network else None
        self._image_mib = image_mib

    @property
    def bootstrap(self) -> str:
        return ",".join(node.place.kafka for node in self.nodes.values())

    @property
    def login(self) -> Login:
        """How clients log in, once a node was launched."""
        return self.software.login

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_running]

    @property
    def watcher(self) -> str | None:
        """The address that watching speaks from, where there is one."""
        return address_of(WATCHER) if self.network else None

    def place(self, number: int, *, is_first: bool = False) -> Node:
        """Give node `number` a place to live, with an empty disk."""
        scratch = self.directory / f"node-{number}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        if self.network:
            self.network.plug(number)
            addresses = (address_of(number), _KAFKA_PORT, _HTTP_PORT, _INTERNAL_PORT)
        else:
            addresses = ("127.0.0.1", free_port(), free_port(), free_port())
        disk = None
        if self.machine.has_disks:
            disk = Disk(self.directory / f"node-{number}.img", scratch / "disk", self._image_mib)
        data = (disk.mount_point if disk else scratch) / "data"
        place = Place(number, *addresses, data_dir=data, scratch=scratch)
        node = Node(place, disk, self.machine.has_fake_time, lambda: self.login)
        self.nodes[number] = node
        if is_first:
            self.first.append(place)
        return node

    def form(self, size: int) -> None:
        """The first nodes, all at once, and wait until they serve."""
        for number in range(1, size + 1):
            self.place(number, is_first=True)
        for node in self.nodes.values():
            self.launch(node)
        self.wait_until_serving(list(self.nodes.values()))

    def launch(self, node: Node) -> None:
        node.launch(self.software, self.first, in_namespace=self.network is not None)

    def start(self, node: Node, limit_s: float = READY_LIMIT_S) -> None:
        self.launch(node)
        self.wait_until_serving([node], limit_s)

    def wait_until_serving(self, nodes: Sequence[Node], limit_s: float = READY_LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        for node in nodes:
            while not self.is_serving(node):
                if not node.is_running:
                    raise ClusterError(f"{node} ended before it served\n{node.log_tail()}")
                if time.monotonic() > deadline:
                    raise ClusterError(f"{node} did not serve within {limit_s:.0f} s\n{node.log_tail()}")
                time.sleep(0.05)

    def is_serving(self, node: Node) -> bool:
        if self.software.name == "kafka":
            return node.is_running and _accepts(node.place.host, node.place.kafka_port, self.watcher)
        return node.is_running and node.is_ready(self.watcher)

    def remove(self, number: int) -> None:
        """Forget a node for good: its process, its disk."""
        node = self.nodes.pop(number)
        node.kill()
        if node.disk:
            node.disk.unmount()

    def close(self) -> None:
        """Kill what runs and give back the disks; images and directories go with the run's directory."""
        for node in self.nodes.values():
            with contextlib.suppress(ProcessLookupError):
                node.kill()
            if node.disk:
                with contextlib.suppress(Exception):
                    node.disk.unmount()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _accepts(host: str, port: int, source: str | None) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), 1.0, (source, 0) if source else None).close()
        return True
    return False


def wait_for(condition: Callable[[], bool], limit_s: float, step_s: float = 0.1) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(step_s)
    return True
