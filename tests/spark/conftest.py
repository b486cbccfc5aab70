"""One Spark session and one broker for all tests of Spark that a process runs: both take long to start.

The same JVM also serves Spark Connect, so that what is tested with the one kind of session can be with the other.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.node import free_port

from penstock.client.generated.sync import Client
from penstock.testing.local import LocalBroker

_numbers = itertools.count()


@pytest.fixture(scope="session")
def connect_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def spark(connect_port: int) -> Iterator[Any]:
    from penstock.spark import session

    connect = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": connect_port,
    }
    made = session("penstock-tests", "local[2]", testing=True, **connect)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture
def remote(spark: Any, connect_port: int) -> Iterator[Any]:  # its JVM is the server
    """A session by Connect. PySpark's functions are made for one kind of session at a time, as the environment says."""
    from pyspark.sql.connect.session import SparkSession

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    try:
        made = SparkSession.builder.remote(f"sc://127.0.0.1:{connect_port}").create()
        yield made
        made.stop()
    finally:
        del os.environ["SPARK_CONNECT_MODE_ENABLED"]


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
