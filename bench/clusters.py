"""Three nodes on this machine as one target: each a process of its own on loopback, every topic on all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.software import KafkaNodes, PenstockNodes, Place, Software
from bench.install import ensure_command
from bench.kafka import fetch
from bench.process import BrokerProcess, Memory, answers_api_versions, free_port
from bench.targets import Node, Penstock, Target, is_ready

SIZE = 3


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of several nodes, measured and stopped as one."""

    members: Sequence[BrokerProcess]

    @property
    def is_running(self) -> bool:
        return all(member.is_running for member in self.members)

    def cpu_seconds(self) -> float:
        return sum(member.cpu_seconds() for member in self.members)

    def memory(self) -> Memory:
        each = [member.memory() for member in self.members]
        return Memory(sum(one.rss_mb for one in each), sum(one.anon_mb for one in each))

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(member.log_tail(lines) for member in self.members)

    def stop(self, patience_s: float = 10) -> None:
        """All at once: the last of a cluster may wait in vain for a quorum to say farewell to."""
        for member in self.members:
            member.terminate()
        for member in self.members:
            member.stop(patience_s)


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """Several nodes of one software."""

    name: str
    description: str
    software: Software
    nodes: int = SIZE
    ready_limit_s: float = 90

    def prepare(self) -> str:
        if isinstance(self.software, KafkaNodes):
            ensure_command("java", "default-jre-headless")
            return fetch(self.software.version)
        return Penstock(self.name, self.description).prepare()

    def start(self, directory: Path) -> Node:
        places = [self._place(directory, number) for number in range(1, self.nodes + 1)]
        began = time.monotonic()
        members: list[BrokerProcess] = []
        try:
            for place in places:
                command, environment = self.software.command(place, places)
                members.append(BrokerProcess(command, place.scratch / "broker.log", environment, place.scratch))
            for place, member in zip(places, members, strict=True):
                member.wait_until(lambda place=place: self._serves(place), self.ready_limit_s)  # type: ignore[misc]
        except BaseException:
            Processes(members).stop()
            raise
        ports = [place.kafka_port for place in places]
        return Node(ports[0], directory, Processes(members), time.monotonic() - began, ports[1:])

    def _place(self, directory: Path, number: int) -> Place:
        scratch = directory / f"node-{number}"
        scratch.mkdir(parents=True)
        ports = (free_port(), free_port(), free_port())
        return Place(number, "127.0.0.1", *ports, data_dir=scratch / "data", scratch=scratch)

    def _serves(self, place: Place) -> bool:
        if isinstance(self.software, PenstockNodes) and not is_ready(place.http_port):
            return False
        return answers_api_versions(place.kafka_port)


def penstock_clusters() -> list[Target]:
    return [ClusterTarget("penstock", "three nodes as shipped: a majority has fsynced before the ack", PenstockNodes())]


def kafka_clusters(version: str | None) -> list[Target]:
    software = KafkaNodes(version=version, heap="1G")
    return [ClusterTarget("kafka", "three nodes in combined mode, min.insync.replicas=2, no fsync", software)]
