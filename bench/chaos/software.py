"""What runs on the nodes: Penstock, or Apache Kafka to prove the workload and the checker themselves.

A `Software` says how a node is started on its place and how its replicas are read off the disk; starting, killing and
watching it is the same for both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self

from bench.chaos.login import Login
from bench.kafka import CLUSTER_ID, JVM_FLAGS, LOG4J, fetch
from bench.process import BrokerError
from bench.targets import CACHE, REPO
from penstock.storage.files import DiskFiles, Files
from penstock.storage.inspect import dump_records


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node lives: its number, its addresses, and its data directory."""

    number: int
    host: str
    kafka_port: int
    http_port: int
    internal_port: int
    data_dir: Path
    scratch: Path

    @property
    def kafka(self) -> str:
        return f"{self.host}:{self.kafka_port}"

    @property
    def http(self) -> str:
        return f"{self.host}:{self.http_port}"

    @property
    def internal(self) -> str:
        return f"{self.host}:{self.internal_port}"


class Software(Protocol):
    """A broker that can be one of several."""

    @property
    def name(self) -> str:
        """As in the report."""

    @property
    def login(self) -> Login:
        """How clients log in, once the first node was started."""

    def command(self, place: Place, first: Sequence[Place]) -> tuple[list[str], Mapping[str, str]]:
        """The command and the environment of the node at `place`; `first` are those of the first quorum."""

    def replica(self, place: Place, topic: str, partition: int) -> Iterator[tuple[int, bytes]]:
        """Offset and value of each record in the files of a stopped node, markers left out."""


@dataclass(frozen=True, slots=True)
class PenstockNodes:
    """Penstock; `settings` are environment settings over its defaults."""

    settings: Mapping[str, str] = field(default_factory=dict)
    executable: Path = REPO / ".venv" / "bin" / "penstock"
    name: str = "penstock"
    source: Path | None = None
    """Where the program's source is, if not where it is installed."""

    @property
    def login(self) -> Login:
        return Login()

    def frozen(self, directory: Path) -> Self:
        """The same from a copy of the source: a run tests one state of it, whatever is edited meanwhile."""
        copy = directory / "source"
        shutil.copytree(REPO / "src" / "penstock", copy / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
        return replace(self, source=copy)

    def command(self, place: Place, first: Sequence[Place]) -> tuple[list[str], Mapping[str, str]]:
        command = [str(self.executable), "serve", "--node-id", str(place.number), "--data-dir", str(place.data_dir)]
        command += ["--kafka", place.kafka, "--http", place.http, "--grpc", "null"]
        if place.number not in {each.number for each in first}:
            command += ["--internal", place.internal, "--join", first[0].internal]
        elif len(first) > 1:
            peers = ",".join(f"{each.number}@{each.internal}" for each in first)
            command += ["--internal", place.internal, "--peers", peers]
        left_out = ("PENSTOCK_", "PYTHONDONTWRITEBYTECODE")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        origin = {"PYTHONPATH": str(self.source)} if self.source else {}
        # Its nodes are not on loopback, so they have to know a secret, and to be told that clients need none.
        token = {"PENSTOCK_CLUSTER__TOKEN": "chaos", "PENSTOCK_SECURITY__INSECURE": "true"}
        return command, {**inherited, **origin, **token, **self.settings}

    def replica(self, place: Place, topic: str, partition: int) -> Iterator[tuple[int, bytes]]:
        yield from records_in(place.data_dir / "logs" / topic / str(partition))


KAFKA_PROPERTIES = """process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{kafka_port},CONTROLLER://{host}:{internal_port}
advertised.listeners=PLAINTEXT://{host}:{kafka_port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
share.coordinator.state.topic.replication.factor=3
share.coordinator.state.topic.min.isr=2
log.segment.delete.delay.ms=500
log.initial.task.delay.ms=500
"""


@dataclass(frozen=True, slots=True)
class KafkaNodes:
    """Apache Kafka in combined mode, every node a broker and a controller. `extra` are further properties."""

    extra: str = ""
    version: str | None = None
    heap: str = "512m"
    name: str = "kafka"

    @property
    def login(self) -> Login:
        return Login()

    def command(self, place: Place, first: Sequence[Place]) -> tuple[list[str], Mapping[str, str]]:
        home = CACHE / f"kafka-{fetch(self.version)}"
        config = place.scratch / "server.properties"
        voters = ",".join(f"{each.number}@{each.internal}" for each in first)
        facts = {name: getattr(place, name) for name in ("number", "host", "kafka_port", "internal_port")}
        config.write_text(KAFKA_PROPERTIES.format(voters=voters, data=place.data_dir, **facts) + self.extra)
        (place.scratch / "log4j2.properties").write_text(LOG4J)
        java = ["java", "-cp", f"{home}/libs/*", f"-Dlog4j2.configurationFile={place.scratch}/log4j2.properties"]
        if not (place.data_dir / "meta.properties").exists():
            format_storage(java, config)
        flags = [flag for flag in JVM_FLAGS if not flag.startswith(("-Xmx", "-Xms"))]
        return [*java, *flags, f"-Xmx{self.heap}", f"-Xms{self.heap}", "kafka.Kafka", str(config)], os.environ

    def replica(self, place: Place, topic: str, partition: int) -> Iterator[tuple[int, bytes]]:
        yield from records_in(place.data_dir / f"{topic}-{partition}")


def format_storage(java: Sequence[str], config: Path) -> None:
    """What `kafka-storage.sh format` does for a quorum that its configuration names."""
    command = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise BrokerError(f"storage format failed: {done.stdout}{done.stderr}")


def records_in(directory: Path, files: Files | None = None) -> Iterator[tuple[int, bytes]]:
    """Offset and value of every record in the segments of a directory: both keep batches of the same format."""
    for found in dump_records(files or DiskFiles(), directory) if directory.exists() else ():
        if not found.batch.header.is_control:
            yield found.record.offset, bytes(found.record.value or b"")
