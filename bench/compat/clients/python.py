"""The Python clients, for what the everyday tests leave to this command: transactions, and logins over TLS."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.compat.logins import CERTIFICATE, TOKEN, Login, Refusals
from bench.compat.steps import run

_REFUSALS: Final[Mapping[str, Refusals]] = {
    "confluent-kafka": Refusals(
        ("_AUTHENTICATION",), ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT"), ("TOPIC_AUTHORIZATION_FAILED",)
    ),
    "kafka-python": Refusals(
        ("SaslAuthenticationFailed",), ("KafkaTimeoutError", "NoBrokersAvailable"), ("TopicAuthorizationFailedError",)
    ),
    "aiokafka": Refusals(
        ("SaslAuthenticationFailed", "AuthenticationFailed"),
        ("KafkaConnectionError",),
        ("TopicAuthorizationFailedError",),
        ("KafkaConnectionError",),
    ),
}


class PythonClient:
    """One of the Python clients, which the development lock file has installed already."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._program = [sys.executable, "-m", "bench.compat.programs.python.worker", "--client", name]

    def install(self) -> str:
        return importlib.metadata.version(self.name)

    logins = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", CERTIFICATE, TOKEN)

    @property
    def refusals(self) -> Refusals:
        return _REFUSALS[self.name]

    def round_trip(self, login: Login, directory: Path, topic: str, text: str) -> list[str]:
        program = [sys.executable, "-m", "bench.compat.programs.python.login", self.name]
        return run([*program, login.write(directory / "login.json"), topic, text])

    @property
    def worker(self) -> list[str]:
        return [*self._program, "--do", "work"]

    @property
    def reader(self) -> list[str]:
        return [*self._program, "--do", "read"]
