"""The clients, by name. What a client can do beyond installing itself decides which scenarios it plays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from bench.compat.clients.franz import FranzGo
from bench.compat.clients.java import Java
from bench.compat.clients.kafkajs import KafkaJs
from bench.compat.clients.kcat import Kcat
from bench.compat.clients.python import PythonClient
from bench.compat.clients.spark import Spark


class Client(Protocol):
    """A client library, driven through its own programs."""

    name: str

    def install(self) -> str:
        """Make it ready; its version."""


CLIENTS: dict[str, Callable[[], Client]] = {
    "kcat": Kcat,
    "kafkajs": KafkaJs,
    "java": Java,
    "franz-go": FranzGo,
    "confluent-kafka": partial(PythonClient, "confluent-kafka"),
    "kafka-python": partial(PythonClient, "kafka-python"),
    "aiokafka": partial(PythonClient, "aiokafka"),
    "spark": Spark,
}
