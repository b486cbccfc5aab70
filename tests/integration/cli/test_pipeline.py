"""``penstock pipeline`` where it asks a node: what runs reported, seen and answered. No Spark takes part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.exits import CommandError
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
    assert "ends after the batch" in ask(broker, "stop", "orders")
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
    assert "could not be told" not in capsys.readouterr().err, "one of its nodes is enough"
    alone = Reports(Definition(name="orders", servers="http://127.0.0.1:1"))
    assert [alone.send(report("run-3", "starting")) for _ in range(2)] == [False, False]
    assert capsys.readouterr().err.count("could not be told") == 1
