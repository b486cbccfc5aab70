"""Pipelines over real HTTP: runs report, others look and ask them to stop."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

STARTED = "2026-01-31T12:00:00Z"


class Runner:
    """A run of a pipeline, as far as the cluster sees it."""

    def __init__(self, client: httpx.Client, name: str, run: str) -> None:
        self._client, self._path, self._run = client, f"/v1/pipelines/{name}", run

    def tell(self, state: str, **more: Any) -> httpx.Response:
        return self._client.put(self._path, json={"run": self._run, "state": state, "started_at": STARTED, **more})


def test_a_run_is_seen_asked_to_stop_and_replaced(client: httpx.Client) -> None:
    assert client.get("/v1/pipelines").json() == {"pipelines": []}
    assert client.get("/v1/pipelines/orders").status_code == 404
    run = Runner(client, "orders", "run-1")
    assert run.tell("starting").json()["stop_requested"] is False
    query = {
        "name": "large",
        "batch": 3,
        "rows": 50,
        "rows_per_second": 2.5,
        "batch_ms": 1500,
        "lag": 7,
        "unmet": {"a": 2},
    }
    run.tell("running", queries=[query], host="here", master="local[1]", file="orders.yaml")
    (seen,) = client.get("/v1/pipelines").json()["pipelines"]
    assert (seen["name"], seen["state"], seen["queries"]) == ("orders", "running", [query])
    assert client.get("/v1/pipelines/orders").json() == seen

    shown = client.get("/metrics").text
    for line in (
        'penstock_pipeline_state{pipeline="orders",state="running"} 1.0',
        'penstock_pipeline_state{pipeline="orders",state="failed"} 0.0',
        'penstock_pipeline_rows{pipeline="orders"} 50.0',
        'penstock_pipeline_lag_messages{pipeline="orders"} 7.0',
        'penstock_pipeline_unmet_rows{pipeline="orders"} 2.0',
        'penstock_pipeline_batch_seconds{pipeline="orders"} 1.5',
    ):
        assert line in shown

    assert client.post("/v1/pipelines/orders/stop").json()["stop_requested"] is True
    assert run.tell("running").json()["stop_requested"] is True
    other = Runner(client, "orders", "run-2")
    assert other.tell("starting").json()["stop_requested"] is False, "that was asked of the run before"
    refused = run.tell("running")
    assert (refused.status_code, refused.json()["code"]) == (409, "pipeline_replaced")
    assert other.tell("failed", error="no such topic").json()["ended_at"] is not None
    assert client.post("/v1/pipelines/orders/stop").json()["stop_requested"] is False, "it is over"
    assert client.delete("/v1/pipelines/orders").status_code == 204
    assert client.delete("/v1/pipelines/orders").status_code == 404
    assert client.get("/v1/pipelines").json() == {"pipelines": []}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("9lives", {}),
        ("orders", {"state": "bored"}),
        ("orders", {"queries": [{"name": "a", "rows": -1}]}),
        ("orders", {"colour": "red"}),
        ("orders", {"run": ""}),
    ],
)
def test_nonsense_is_refused(client: httpx.Client, name: str, change: dict[str, Any]) -> None:
    body = {"run": "r", "state": "running", "started_at": STARTED} | change
    assert client.put(f"/v1/pipelines/{name}", json=body).status_code in (400, 422)
