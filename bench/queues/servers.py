"""The peers as processes: each on an empty directory, on a port of its own, as durable as its variant says."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.install import ensure_command
from bench.process import BrokerError, BrokerProcess, free_port

_READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """One peer that is up."""

    port: int
    process: BrokerProcess
    data_dir: Path


@dataclass(frozen=True, slots=True)
class Software:
    """A peer: where it comes from, and how it is started."""

    name: str
    description: str
    command: str
    package: str
    begin: Callable[[Path, int], tuple[list[str], dict[str, str]]]

    def prepare(self) -> str:
        """Install it if need be; its version."""
        ensure_command(self.command, self.package)
        asked = ["dpkg-query", "-W", "-f", "${Version}", self.package]
        return subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout.strip() or "unknown"

    def start(self, directory: Path) -> Server:
        port = free_port()
        arguments, environment = self.begin(directory, port)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RABBITMQ_")}
        process = BrokerProcess(arguments, directory / "server.log", {**inherited, **environment}, directory)
        try:
            process.wait_until(lambda: listens(port), _READY_S)
        except BrokerError:
            process.stop()
            raise
        return Server(port, process, directory)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _redis(sync: str) -> Callable[[Path, int], tuple[list[str], dict[str, str]]]:
    def begin(directory: Path, port: int) -> tuple[list[str], dict[str, str]]:
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
        return ["redis-server", *settings, "--appendonly", "yes", "--appendfsync", sync], {}

    return begin


def _nats(directory: Path, port: int) -> tuple[list[str], dict[str, str]]:
    return ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory)], {}


def _rabbitmq(directory: Path, port: int) -> tuple[list[str], dict[str, str]]:
    # Debian's wrapper insists on its own user; the script behind it does not.
    script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    found = str(script) if script.exists() else shutil.which("rabbitmq-server") or "rabbitmq-server"
    environment = {
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "HOME": str(directory),
    }
    return [found], environment


PEERS = (
    Software("redis", "appendfsync everysec", "redis-server", "redis-server", _redis("everysec")),
    Software("redis+always", "appendfsync always", "redis-server", "redis-server", _redis("always")),
    Software("nats", "JetStream, file store", "nats-server", "nats-server", _nats),
    Software("rabbitmq", "quorum queue", "rabbitmq-server", "rabbitmq-server", _rabbitmq),
)
