"""The broker that the scenarios meet: a Penstock node, three of them, or an Apache Kafka one to prove the scenarios.

All expire silent members of a group after six seconds rather than forty-five where the broker decides that (KIP-848),
so that a crash is part of the story and not most of it. Everything else is as shipped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench.chaos.software import PenstockNodes
from bench.clusters import ClusterTarget
from bench.kafka import Kafka
from bench.process import BrokerError
from bench.targets import REPO, Node, Penstock, Target

_PATIENCE_S = 20.0
_COMMAND = REPO / ".venv" / "bin" / "penstock"  # unless PENSTOCK_COMMAND names another
_PENSTOCK_SETTINGS = {
    "PENSTOCK_GROUPS__SESSION_TIMEOUT_MS": "6000",
    "PENSTOCK_GROUPS__HEARTBEAT_INTERVAL_MS": "500",
}
_KAFKA_SETTINGS = """group.consumer.min.session.timeout.ms=6000
group.consumer.session.timeout.ms=6000
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=500
"""


@dataclass(frozen=True, slots=True)
class Broker:
    """A kind of broker: how to start one, and where it keeps the files of a partition."""

    title: str
    target: Target
    partition_directory: Callable[[Path, str, int], Path]
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that is up."""

    broker: Broker
    node: Node
    scratch: Path

    @property
    def bootstrap(self) -> str:
        return self.node.brokers

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create it, and wait until the broker tells everybody: Kafka says yes to a new topic before it knows it."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        (created,) = admin.create_topics([NewTopic(topic, partitions, self.broker.replicas)]).values()
        created.result(_PATIENCE_S)
        deadline = time.monotonic() + _PATIENCE_S
        while not _is_served(admin, topic, partitions):
            if time.monotonic() > deadline:
                raise BrokerError(f"{topic} was created, but is not listed")
            time.sleep(0.1)

    def files_of(self, topic: str, partition: int) -> Path:
        return self.broker.partition_directory(self.node.data_dir, topic, partition)


def _is_served(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether every partition of a topic has a leader."""
    listed = admin.list_topics(timeout=_PATIENCE_S).topics.get(topic)
    led = [each for each in listed.partitions.values() if each.leader >= 0] if listed is not None else []
    return len(led) == partitions


BROKERS = {
    "penstock": Broker(
        "a Penstock node",
        Penstock("penstock", "as shipped", _PENSTOCK_SETTINGS, Path(os.environ.get("PENSTOCK_COMMAND", _COMMAND))),
        lambda data, topic, partition: data / "logs" / topic / str(partition),
    ),
    "cluster": Broker(
        "three Penstock nodes",
        ClusterTarget("penstock", "three nodes as shipped", PenstockNodes(settings=_PENSTOCK_SETTINGS)),
        lambda data, topic, partition: next(data.glob(f"node-*/data/logs/{topic}/{partition}"), data),
        replicas=3,
    ),
    "kafka": Broker(
        "an Apache Kafka node",
        Kafka("kafka", "as shipped", None, _KAFKA_SETTINGS),
        lambda data, topic, partition: data / f"{topic}-{partition}",
    ),
}
