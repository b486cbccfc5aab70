"""What Penstock brings for users' own test suites, as they use it: pytest in a process of its own, nothing set up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SUITE = """
import json
import urllib.request

from confluent_kafka import Consumer, Producer
from penstock import Client
from penstock.testing import LocalBroker


def test_doors(penstock, penstock_url):
    producer = Producer({"bootstrap.servers": penstock.bootstrap})
    producer.produce("orders", b"by kafka")
    assert producer.flush(60) == 0
    with urllib.request.urlopen(penstock_url + "/v1/topics") as answer:
        assert "orders" in json.dumps(json.load(answer))
    with Client(penstock_url) as client:
        (message,) = client.queue("orders").receive(1, wait=10)
        assert message.value == b"by kafka"
        message.ack()


def test_nothing_is_left_of_the_test_before(penstock):
    with penstock.client() as client:
        client.publish("orders", b"mine")
        (message,) = client.queue("orders").receive(10, wait=10)
        assert message.value == b"mine"


def test_data_and_ports_outlive_a_restart(penstock):
    before = penstock.url, penstock.bootstrap
    with penstock.client() as client:
        client.publish("orders", b"kept")
    penstock.restart()
    assert (penstock.url, penstock.bootstrap) == before
    with penstock.client() as client:
        (message,) = client.queue("orders").receive(1, wait=10)
        assert message.value == b"kept"


def test_settings():
    with LocalBroker(settings={"defaults.topic.partitions": 4}) as broker, broker.client() as client:
        client.publish("orders", b"one")
        with urllib.request.urlopen(broker.url + "/v1/topics/orders") as answer:
            assert json.load(answer)["partitions"] == 4


def test_seed(virtual_penstock):
    assert virtual_penstock.seed == 7
"""
USELESS = """
import sys

def test_nothing_is_loaded_for_who_does_not_use_it():
    loaded = [name for name in sys.modules if name.startswith("penstock.")]
    assert loaded == ["penstock.testing", "penstock.testing.plugin"], loaded
"""


def run_suite(directory: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_application.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, str(directory)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=110, check=False)


def test_a_suite_uses_the_broker_through_every_door(tmp_path: Path) -> None:
    done = run_suite(tmp_path, SUITE, "--penstock-seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_a_suite_that_does_not_use_it_loads_nothing(tmp_path: Path) -> None:
    done = run_suite(tmp_path, USELESS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_fixtures_are_told_of(tmp_path: Path) -> None:
    done = run_suite(tmp_path, USELESS, "--fixtures")
    for name in ("penstock", "penstock_url", "virtual_penstock"):
        assert f"\n{name} -- " in done.stdout
