"""``penstock pipeline`` as people use it: a process with a Spark of its own, watched and stopped from elsewhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.node import Node, penstock_command
from tests.support.tutorial import Reader, blocks_of

from penstock.client.generated.sync import Client
from penstock.testing.local import LocalBroker

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

_PATIENCE_S = 400.0
_STOP_SECONDS_MAX = 45.0  # a report every two seconds brings the request; then the end of the batch, and of the JVM
README = Path(__file__).parents[2] / "README.md"
TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "log-queue-spark.md"


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


class Command:
    """The command in a directory, against a broker."""

    def __init__(self, directory: Path, url: str, running: list[subprocess.Popen[str]]) -> None:
        self._directory = directory
        self._url = url
        self._running = running

    def __call__(self, *arguments: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [penstock_command(), "pipeline", *arguments],
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == exit_code, done.stderr
        return done

    def ask(self, *arguments: str) -> str:
        return self(*arguments, "--url", self._url).stdout

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [penstock_command(), "pipeline", "run", *arguments],
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._running.append(process)
        return process


@pytest.fixture
def command(tmp_path: Path, broker: LocalBroker, running: list[subprocess.Popen[str]]) -> Command:
    return Command(tmp_path, broker.url, running)


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.2)


def state_of(broker: LocalBroker, name: str) -> dict[str, Any]:
    answer = httpx.get(f"{broker.url}/v1/pipelines/{name}")
    found: dict[str, Any] = answer.json() if answer.status_code == 200 else {"state": "", "queries": []}
    return found


def rows_of(broker: LocalBroker, name: str) -> int:
    return sum(query["rows"] for query in state_of(broker, name)["queries"])


def published(count: int, first: int = 0) -> list[bytes]:
    return [json.dumps({"id": f"o{at}", "amount": at}).encode() for at in range(first, first + count)]


def test_from_init_to_stop(tmp_path: Path, broker: LocalBroker, client: Client, command: Command) -> None:
    client.create_topic("orders", partitions=2)
    client.publish_many("orders", [*published(300), b'{"amount": 3}'])
    if any(topic.name == "large-orders" for topic in client.topics.list()):
        client.topics.delete("large-orders")  # the example of Spark's own pipelines has the same name for it
    command("init")
    command("check", "pipeline.yaml", "--deep", "--servers", broker.url)
    arguments = ["pipeline.yaml", "--servers", broker.url, "--master", "local[1]"]
    told = json.loads(command("run", *arguments, "--once").stdout)
    (query,) = told["queries"]
    assert (told["state"], query["rows"], query["unmet"]) == ("finished", 301, {"id IS NOT NULL": 1})
    assert sum(1 for _ in client.read("large-orders", 0)) == 200
    assert state_of(broker, "pipeline")["state"] == "finished"

    # On and on, stopped from elsewhere, then by a signal; each goes on where the last one was.
    process = command.begin(*arguments, "--continuous")
    wait_for(lambda: state_of(broker, "pipeline")["state"] == "running")
    client.publish_many("orders", published(100, 300))
    wait_for(lambda: rows_of(broker, "pipeline") == 100)
    assert "pipeline" in command.ask("list")
    assert '"running"' in command.ask("status", "pipeline")
    shown = httpx.get(f"{broker.url}/metrics").text
    assert 'penstock_pipeline_state{pipeline="pipeline",state="running"} 1.0' in shown
    assert 'penstock_pipeline_rows{pipeline="pipeline"} 100.0' in shown
    command.ask("stop", "pipeline")
    assert process.wait(_PATIENCE_S) == 0
    assert state_of(broker, "pipeline")["state"] == "stopped"

    process = command.begin(*arguments)
    wait_for(lambda: state_of(broker, "pipeline")["state"] == "running")
    client.publish_many("orders", published(100, 400))
    wait_for(lambda: rows_of(broker, "pipeline") == 100)
    process.send_signal(signal.SIGTERM)
    assert process.wait(_PATIENCE_S) == 0
    assert state_of(broker, "pipeline")["state"] == "stopped"
    assert sum(1 for _ in client.read("large-orders", 0)) == 400
    lines = [json.loads(line)["message"] for line in command.ask("logs", "pipeline").splitlines()]
    assert sum(line.startswith("stopped") for line in lines) == 2


def test_a_stream_of_health_ends_soon_after_it_is_stopped(
    tmp_path: Path, broker: LocalBroker, client: Client, command: Command
) -> None:
    client.create_topic("figures")
    text = "pipeline: health\nuses: health\nwith: {to: figures, every: 10 minutes}\n"
    (tmp_path / "health.yaml").write_text(text)
    process = command.begin("health.yaml", "--servers", broker.url, "--master", "local[1]")
    wait_for(lambda: any(True for _ in client.read("figures", 0)))
    command.ask("stop", "health")
    assert process.wait(_STOP_SECONDS_MAX) == 0
    assert state_of(broker, "health")["state"] == "stopped"


def test_what_goes_wrong_is_said_in_words(tmp_path: Path, broker: LocalBroker, command: Command) -> None:
    (tmp_path / "wrong.yaml").write_text("pipeline: p\nsources: {a: {topic: x}}\nsinks: {b: {from: c, topic: x}}\n")
    told = command("run", "wrong.yaml", exit_code=2).stderr
    assert re.search(r"wrong\.yaml:2:\d+: source 'a' names no topic", told)
    assert re.search(r"wrong\.yaml:3:\d+: 'c', which is no source or step", told)
    command("init", "far.yaml")
    told = command("run", "far.yaml", "--once", "--servers", "http://127.0.0.1:1", exit_code=5).stderr
    assert "127.0.0.1:1" in told


def test_the_pipeline_of_the_readme_works_as_pasted(tmp_path: Path) -> None:
    section = README.read_text().split("\n## A pipeline", 1)[1].split("\n## ", 1)[0]
    (script,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    installing, script = script.split("\n", 1)
    assert installing.startswith("pip install"), "which is done in a clone, and here"
    path = f"{Path(penstock_command()).parent}:{os.environ['PATH']}"
    with LocalBroker() as broker:  # with nothing in it
        done = subprocess.run(
            ["sh", "-e"],
            input=script,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
            env={**os.environ, "PATH": path, "PENSTOCK_URL": broker.url},
        )
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    assert json.loads(json.loads(last)["value"]) == {"id": "b", "amount": 150}


def test_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", storage__fsync="none")
    node.start()
    try:
        Reader(node, tmp_path, patience_s=_PATIENCE_S).follow(list(blocks_of(TUTORIAL.read_text())))
    finally:
        node.kill()
