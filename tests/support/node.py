"""A Penstock node as a process of its own, for tests that start, kill and restart real nodes.

A node keeps its data directory and its ports over restarts, so that clients find it again. Everything that it writes
goes to one log file, which `log_text` gives back and which every failure of this module quotes. A node never outlives
the tests: the kernel kills it when the process that started it dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
from tests.support.nursery import Child, die_with_parent, nursery
from tests.support.wire import answers_api_versions

_READY_LIMIT_S = 90.0  # of a machine that does a lot beside; a node that cannot start ends by itself
_LOG_LINES_SHOWN = 40


class NodeError(AssertionError):
    """The node did not do what the test asked of it; the message ends with its last log lines."""


_PORTS = range(20_000, 32_000)  # below those that the system gives to clients, which else take one before its node does
_PORTS_OF_A_BLOCK = 40


def _claimed_ports() -> Iterator[int]:
    """Ports in blocks, each of which belongs to this process until it ends: its name is bound as a socket's."""
    claims = []
    for first in _PORTS[::_PORTS_OF_A_BLOCK]:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0penstock-test-ports-{first}")
        except OSError:  # another process has it
            claim.close()
            continue
        claims.append(claim)
        yield from range(first, first + _PORTS_OF_A_BLOCK)


_ports = _claimed_ports()


def free_port() -> int:
    """A loopback port that nobody listens on, and that nobody else who asks here gets, in whichever process."""
    for port in _ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the tests have used all of their ports")


def penstock_command() -> str:
    """The command under test: the one of this environment, unless PENSTOCK_COMMAND names another."""
    return os.environ.get("PENSTOCK_COMMAND", str(Path(sys.executable).with_name("penstock")))


class Node:
    """One node: a data directory, three ports and, while it runs, a process."""

    def __init__(self, directory: Path, *, data_dir: Path | None = None, node_id: int = 1, **settings: object) -> None:
        """``settings`` are dotted paths with ``__`` for the dot: ``storage__segment_bytes=4096``."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.data_dir = data_dir or directory / "data"
        self.node_id = node_id
        self.kafka_port = free_port()
        self.http_port = free_port()
        self.grpc_port = free_port()
        self.settings: Mapping[str, object] = settings
        self.module = "penstock"  # what the process runs, as by ``python -m``
        self.verb = "serve"  # what the command is told to do
        self.arguments: Sequence[str] = ()  # for `penstock serve`, beside the usual ones
        self.environment: dict[str, str] = {}
        self.log_path = directory / "node.log"
        self._child: Child | subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Node {self.node_id} at {self.bootstrap}, {'running' if self.is_running else 'not running'}>"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.kafka_port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def rss_bytes(self) -> int:
        assert self._child is not None, "the node was never started"
        rss: int = psutil.Process(self._child.pid).memory_info().rss
        return rss

    @property
    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        return "\n".join(self.log_text.splitlines()[-_LOG_LINES_SHOWN:])

    def partition_dir(self, topic: str, index: int = 0) -> Path:
        return self.data_dir / "logs" / topic / str(index)

    # -- life and death -----------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the process and return at once."""
        assert not self.is_running, "the node runs already"
        arguments = [self.verb, "--node-id", str(self.node_id), "--data-dir", str(self.data_dir)]
        arguments += ["--kafka", self.bootstrap, "--http", f"127.0.0.1:{self.http_port}", "--grpc", self.grpc]
        arguments += self.arguments
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        chosen = {f"PENSTOCK_{name.upper()}": str(value) for name, value in self.settings.items()}
        environment = {**inherited, **chosen, **self.environment}
        if "PENSTOCK_COMMAND" not in os.environ and nursery().is_fit:
            self._child = nursery().start(self.module, arguments, self.log_path, self.directory, environment)
            return
        with self.log_path.open("ab") as out:
            self._child = subprocess.Popen(
                [*self._command(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.directory,
                preexec_fn=die_with_parent,
            )

    def _command(self) -> Sequence[str]:
        return (penstock_command(),) if self.module == "penstock" else (sys.executable, "-m", self.module)

    def start(self) -> Node:
        """Start the process and wait until it serves."""
        self.launch()
        return self.await_ready()

    def await_ready(self) -> Node:
        """Wait until the process that was launched serves."""
        deadline = time.monotonic() + _READY_LIMIT_S
        while not self.is_ready():
            if not self.is_running:
                raise NodeError(f"the node ended with {self.exit_code} before it was ready\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise NodeError(f"the node was not ready after {_READY_LIMIT_S:.0f} s\n{self.log_tail()}")
            time.sleep(0.01)
        return self

    def is_ready(self) -> bool:
        """Whether ``/readyz`` says so and the Kafka port answers."""
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.http_url}/readyz", timeout=1) as answer:
            return answer.status == 200 and answers_api_versions(self.kafka_port)
        return False

    def kill(self) -> None:
        """``kill -9``, and wait until the kernel has cleaned up."""
        assert self._child is not None, "the node was never started"
        self._child.kill()
        self._child.wait()

    def restart(self) -> Node:
        """Start again on the same directory and ports, after `kill` or `stop`."""
        return self.start()

    def stop(self, patience_s: float = 60.0) -> int:
        """SIGTERM, and the exit code; a node that does not end in time is killed, and that is an error."""
        assert self._child is not None, "the node was never started"
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            return self._child.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeError(f"the node did not stop within {patience_s:.0f} s\n{self.log_tail()}") from None

    def wait_for_exit(self, patience_s: float = 60.0) -> int:
        """The exit code of a node that is expected to end by itself."""
        assert self._child is not None, "the node was never started"
        try:
            return self._child.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeError(f"the node went on although it should have ended\n{self.log_tail()}") from None

    @property
    def exit_code(self) -> int | None:
        return None if self._child is None else self._child.poll()

    def pause(self) -> None:
        """Stop the process in its tracks, as a machine that hangs."""
        assert self._child is not None, "the node was never started"
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._child is not None, "the node was never started"
        self._child.send_signal(signal.SIGCONT)

    def __enter__(self) -> Node:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        if self.is_running:
            self.kill()
