"""What all clients share: a name, a diary, the wish to stop, and settings that suit a cluster in trouble."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError

from bench.chaos.history import Diary, Outcome
from bench.chaos.login import kafka_login

LOG_TOPIC = "chaos"
DERIVED_TOPIC = f"{LOG_TOPIC}.derived"  # the checker finds the source by this name
LEDGER_TOPIC = "ledger"
TOPICS = {LOG_TOPIC: 4, DERIVED_TOPIC: 4, LEDGER_TOPIC: 4}
FINISH_LIMIT_S = 90.0
CALL_LIMIT_S = 15.0
EXIT_FATAL, EXIT_STUCK = 3, 4

# Refused before anything was written, whatever happens later. All else may have been written, even what librdkafka
# purges from its queue: a message that waits there to be sent again may have arrived the first time.
_CERTAINLY_FAILED = {
    KafkaError._QUEUE_FULL,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INVALID_REQUIRED_ACKS,
}


@dataclass
class Client:
    """One client process."""

    name: str
    incarnation: int
    bootstrap: str
    diary: Diary
    login: Mapping[str, str] = field(default_factory=kafka_login, repr=False)
    stopping: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def open(cls, name: str, incarnation: int, bootstrap: str, diary: Path) -> Client:
        client = cls(name, incarnation, bootstrap, Diary(diary))
        signal.signal(signal.SIGTERM, lambda *_: client.stopping.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that runs us
        return client

    @property
    def full_name(self) -> str:
        return f"{self.name}.{self.incarnation}"

    def settings(self, **more: Any) -> dict[str, Any]:
        """Settings by which a client soon notices that a node is gone. Keyword names have ``_`` for the dot."""
        return {
            "bootstrap.servers": self.bootstrap,
            **self.login,
            "client.id": self.full_name,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 500,
            "socket.timeout.ms": 6_000,
            "socket.connection.setup.timeout.ms": 3_000,
            "topic.metadata.refresh.interval.ms": 5_000,
            "topic.metadata.refresh.fast.interval.ms": 100,
            # When the one node that it is connected to closes the connection, librdkafka 2.16 begins again from the
            # bootstrap servers, and may stand still for good if it lets go of the coordinator while it commits.
            "metadata.recovery.strategy": "none",
            "log_level": 0,
            "error_cb": self.note,
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def note(self, error: object) -> None:
        """A line in the client's log, for whoever looks into a strange run."""
        print(f"{time.monotonic():.3f} {self.full_name}: {error}", file=sys.stderr, flush=True)


def outcome_of(error: KafkaError | None) -> Outcome:
    """What an error says about a message."""
    if error is None:
        return "ok"
    return "fail" if error.code() in _CERTAINLY_FAILED else "info"


def partition_of(key: int, partitions: int) -> int:
    return key * 7919 % partitions
