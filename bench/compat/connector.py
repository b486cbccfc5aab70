"""The scenario "connector": Spark's own Kafka connector writes and reads topics, in batches and in streams.

One Spark session does everything, because starting one takes longer than all of it. Its program tells how each of its
checks went, one line of JSON each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from confluent_kafka import KafkaException, Producer

from bench.compat.brokers import Running
from bench.compat.steps import Result, StepFailedError, step

TOPICS = {"orders": 3, "results": 3, "ledger": 1}
ROWS_A_TRANSACTION = 50
PREFIX = "spark"


@runtime_checkable
class Connects(Protocol):
    """A client that is the connector of something larger."""

    name: str

    def job(self, bootstrap: str, prefix: str, scratch: Path) -> list[str]:
        """Run it on the topics of that prefix; each line of its output is a check in JSON."""


def play(client: Connects, broker: Running) -> Iterator[Result]:
    for name, partitions in TOPICS.items():
        broker.create_topic(f"{PREFIX}-{name}", partitions)
    yield step(client.name, "a ledger in transactions", partial(_write_ledger, broker.bootstrap))
    told: list[Result] = []
    ran = step(client.name, "run the checks", partial(_run, client, broker, told))
    yield from told if ran.passed else [*told, ran]


def _write_ledger(bootstrap: str) -> None:
    """What a transaction wrote that was aborted, and what one wrote that was committed."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "ledger"})
    try:
        producer.init_transactions(10)
        for word, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
            producer.begin_transaction()
            for number in range(ROWS_A_TRANSACTION):
                producer.produce(f"{PREFIX}-ledger", f"{word} {number}".encode(), partition=0)
            producer.flush(10)
            end(10)
    except KafkaException as error:
        raise StepFailedError(str(error)) from error


def _run(client: Connects, broker: Running, told: list[Result]) -> str:
    scratch = broker.scratch / "spark"
    scratch.mkdir()
    told += [Result(client=client.name, **json.loads(line)) for line in client.job(broker.bootstrap, PREFIX, scratch)]
    return f"{len(told)} checks"
