"""``penstock pipeline`` where it asks a node: what runs reported, seen and answered. No Spark takes part."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.exits import CommandError, Exit
from penstock.cli.pipeline import pipeline
from penstock.cli.runs import Reports
from penstock.pipelines.definition import Definition
from penstock.testing.local import LocalBroker

QUERY = {"name": "large", "batch": 3, "rows": 50, "rows_per_second": 2.5, "batch_ms": 1500, "lag": 7, "unmet": {"a": 2}}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(settings={"defaults.topic.partitions": 3}) as made:
        yield made


def ask(broker: LocalBroker, *arguments: str) -> str:
    done = CliRunner().invoke(pipeline, [*arguments, "--url", broker.url], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


def report(run: str, state: str, **more: Any) -> dict[str, Any]:
    told = {"started_at": "2026-01-31T12:00:00Z", "host": "here", "master": "local[1]", "file": "orders.yaml"}
    return {"run": run, "state": state, "error": None, "queries": [], **told, **more}


def test_what_a_run_says_is_seen_and_a_stop_reaches_it(broker: LocalBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(broker, "logs", "orders") == ""
    with pytest.raises(CommandError, match="No pipeline 'orders'"):
        ask(broker, "status", "orders")
    first, second = (Reports(Definition(name="orders", servers=f"http://127.0.0.1:1,{broker.url}")) for _ in range(2))
    assert first.send(report("run-1", "starting")) is False
    assert first.send(report("run-1", "running", queries=[QUERY])) is False
    assert json.loads(ask(broker, "status", "orders"))["queries"] == [QUERY]
    table = ask(broker, "status", "orders", "-o", "table")
    for text in ("orders", "running", "large", "1,500 ms", "a: 2"):
        assert text in table
    assert json.loads(ask(broker, "list"))["state"] == "running"
    assert "ends after its current batch" in ask(broker, "stop", "orders")
    assert first.send(report("run-1", "running")) is True
    assert second.send(report("run-2", "starting")) is False
    assert first.send(report("run-1", "running")) is True, "another run has taken over, so this one ends"
    assert second.send(report("run-2", "failed", error="no such topic")) is False
    assert "is failed already" in ask(broker, "stop", "orders")
    said = [json.loads(line)["message"] for line in ask(broker, "logs", "orders").splitlines()]
    assert [line.split(",")[0] for line in said] == [
        *("run run-1 begins on here", "running", "run run-2 begins on here", "failed: no such topic"),
    ]
    assert ask(broker, "logs", "orders", "-n", "1", "-o", "table").endswith("failed: no such topic\n")
    assert "cannot be reported" not in capsys.readouterr().err, "one of its nodes is enough"
    alone = Reports(Definition(name="orders", servers="http://127.0.0.1:1"))
    assert [alone.send(report("run-3", "starting")) for _ in range(2)] == [False, False]
    assert capsys.readouterr().err.count("cannot be reported") == 1


YAML = """pipeline: p
servers: SERVERS
sources:
  orders: {topics: TOPIC, schema: "id STRING"}
sinks:
  all: {from: orders, topic: large-orders}
"""


def run(path: Path, text: str) -> CommandError:
    """Run a pipeline that has to be refused before a Spark is needed."""
    path.write_text(text)
    done = CliRunner().invoke(pipeline, ["run", str(path), "--once"], standalone_mode=False)
    assert isinstance(done.exception, CommandError), done.exception
    assert len(done.exception.message.splitlines()) == 1
    return done.exception


def test_what_is_wrong_is_said_before_spark_starts(
    broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_session(*_: object, **__: object) -> None:
        pytest.fail("Spark is not needed for that")

    monkeypatch.setattr("penstock.cli.pipeline._session", no_session)
    path, text = tmp_path / "p.yaml", YAML.replace("SERVERS", broker.url)
    told = run(path, text.replace("TOPIC", "nowhere"))
    assert (told.exit_code, told.message) == (
        Exit.NOT_FOUND,
        f"{path}:4:11: There is no topic nowhere. Create it, or check the option `topics`.",
    )
    told = run(path, text.replace("topics: TOPIC", "subscribe: x, kafka.bootstrap.servers: 'a:9092'"))
    assert told.exit_code == Exit.USAGE
    assert "p.yaml:4:11: Penstock is read and written over HTTP" in told.message
    told = run(path, text.replace("from: orders", "from: orders, kafka.acks: all").replace("TOPIC", "orders"))
    assert (told.exit_code, "p.yaml:6:8: kafka.acks is for a Kafka client" in told.message) == (Exit.USAGE, True)
    told = run(path, YAML.replace("SERVERS", broker.bootstrap).replace("TOPIC", "orders"))
    assert (told.exit_code, "Kafka" in told.message, broker.url in told.message) == (Exit.USAGE, True, True), (
        told.message
    )
    told = run(path, f"pipeline: a\nservers: {broker.url}\nuses: archive\nwith: {{topics: nowhere, lake: lake}}\n")
    assert (told.exit_code, "There is no topic nowhere." in told.message) == (Exit.NOT_FOUND, True)
    monkeypatch.setattr("penstock.pipelines.preflight._TIMEOUT", "1")
    told = run(path, YAML.replace("SERVERS", "http://127.0.0.1:1").replace("TOPIC", "orders"))
    assert (told.exit_code, "127.0.0.1:1" in told.message) == (Exit.UNAVAILABLE, True)


_STARTING = """
import subprocess, sys
from penstock.cli.runs import startup_noise_held
script = "echo noise >&2; echo; read x; echo later >&2"
try:
    with startup_noise_held():
        child = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        if sys.argv[1] == "fails":
            raise RuntimeError
except RuntimeError:
    pass
child.communicate(b"x")
while sys.stdin.readline():  # what the child printed comes through a thread
    pass
"""


@pytest.mark.parametrize(("how", "words"), [("starts", "later\n"), ("fails", "noise\nlater\n")])
def test_what_a_program_prints_at_its_start_is_shown_only_if_it_fails(how: str, words: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _STARTING, how], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stderr is not None
    told = ""
    while not told.endswith("later\n"):
        told += process.stderr.readline()
    process.stdin.close()
    assert process.wait(60) == 0
    assert told == words


_NOISY = """
import os
from penstock.cli.runs import startup_noise_held
for _ in range(200):
    with startup_noise_held():
        os.write(2, b"noise")
"""


def test_noise_is_held_back_even_if_it_comes_at_the_last_moment() -> None:
    done = subprocess.run([sys.executable, "-c", _NOISY], capture_output=True, check=True)
    assert done.stderr == b""
