"""One Spark session and one broker for all tests of Spark that a process runs: both take long to start."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.blocking import Client
from penstock.testing.local import LocalBroker

_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from penstock.spark import session

    made = session("penstock-tests", "local[2]", testing=True)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the broker of all tests keeps its data."""
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="session")
def broker(data_dir: Path) -> Iterator[LocalBroker]:
    with LocalBroker(data_dir=data_dir) as made:
        yield made


@pytest.fixture(scope="session")
def client(broker: LocalBroker) -> Iterator[Client]:
    with broker.client() as made:
        yield made


@pytest.fixture
def new_topic(client: Client) -> Callable[..., str]:
    """Makes a topic that nobody else uses."""

    def make(partitions: int = 1, name: str = "", **configs: Any) -> str:
        topic = name or f"topic-{next(_numbers)}"
        client.create_topic(topic, partitions=partitions, **configs)
        return topic

    return make
