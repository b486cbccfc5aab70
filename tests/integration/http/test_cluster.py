"""The routes of the cluster on a node that is alone: what they show, and what they refuse."""

from __future__ import annotations

from typing import Any

import httpx
import pytest


def code_of(told: httpx.Response) -> tuple[int, str]:
    return told.status_code, told.json()["code"]


@pytest.fixture
def made(client: httpx.Client, topic: str) -> str:
    client.post("/v1/topics", json={"name": topic, "partitions": 2}).raise_for_status()
    return topic


def test_a_node_alone_is_a_whole_cluster(client: httpx.Client, made: str) -> None:
    status = client.get("/v1/cluster").json()
    assert status["controller"] == 1
    assert [(member["node_id"], member["role"], member["lag"]) for member in status["quorum"]] == [(1, "leader", 0)]
    [node] = status["nodes"]
    assert (node["status"], node["leaders"], node["replicas"]) == ("up", status["partitions"], status["partitions"])
    assert (status["under_replicated"], status["leaderless"], status["moving"]) == (0, 0, 0)
    assert client.get("/v1/nodes").json()["nodes"][0]["endpoints"][0]["door"] == "kafka"
    assert client.get("/v1/reassignments").json() == {"reassignments": []}
    assert made in [found["name"] for found in client.get("/v1/topics").json()["topics"]]


def test_partitions_say_where_they_are_and_whether_they_move(client: httpx.Client, made: str) -> None:
    first = client.get(f"/v1/topics/{made}").json()["partition_details"][0]
    assert (first["leader"], first["replicas"], first["in_sync"]) == (1, [1], [1])
    assert (first["adding"], first["removing"]) == ([], [])


def test_there_is_nothing_to_balance_or_to_elect_with_one_node(client: httpx.Client, made: str) -> None:
    assert client.post("/v1/cluster/rebalance").json() == {"dry_run": False, "moves": [], "stuck": []}
    assert client.post("/v1/cluster/rebalance", json={"dry_run": True}).json() == {
        "dry_run": True,
        "moves": [],
        "stuck": [],
    }
    assert client.post("/v1/cluster/elect-leaders").json() == {"outcomes": []}
    place = {"topic": made, "partition": 0}
    assert code_of(client.post("/v1/cluster/elect-leaders", json={"partitions": [place]})) == (
        409,
        "election_not_needed",
    )


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "invalid_request"),
        ({"nodes": [1], "cancel": True}, 422, "invalid_request"),
        ({"nodes": []}, 422, "invalid_body"),
        ({"nodes": [1, 1]}, 422, "invalid_request"),
        ({"nodes": [7]}, 404, "node_not_found"),
        ({"nodes": [1], "replication_factor": 2}, 422, "invalid_request"),
        ({"cancel": True, "replication_factor": 1}, 422, "invalid_request"),
        ({"moves": [{"partition": 0, "replicas": [9]}]}, 422, "invalid_replica_assignment"),
        ({"moves": [{"partition": 9, "replicas": [1]}]}, 404, "unknown_partition"),
        ({"moves": [{"partition": 0, "replicas": None}]}, 404, "no_reassignment"),
    ],
)
def test_a_move_that_makes_no_sense_is_refused(
    client: httpx.Client, made: str, body: dict[str, Any], status: int, code: str
) -> None:
    assert code_of(client.post(f"/v1/topics/{made}/reassign", json=body)) == (status, code)


def test_some_moves_can_be_refused_while_others_are_made(client: httpx.Client, made: str) -> None:
    body = {"moves": [{"partition": 0, "replicas": [1]}, {"partition": 1, "replicas": [9]}]}
    told = client.post(f"/v1/topics/{made}/reassign", json=body)
    assert told.status_code == 207
    fine, bad = told.json()["outcomes"]
    assert (fine["partition"], fine["error"], fine["replicas"]) == (0, None, [1])
    assert (bad["partition"], bad["error"]["code"]) == (1, "invalid_replica_assignment")
    assert client.post(f"/v1/topics/{made}/reassign", json={"cancel": True}).json() == {"outcomes": []}
    assert code_of(client.post("/v1/topics/nowhere/reassign", json={"cancel": True})) == (404, "unknown_topic")


def test_nodes_that_are_not_there_cannot_be_drained_or_removed(client: httpx.Client) -> None:
    assert code_of(client.post("/v1/nodes/7/drain")) == (404, "node_not_found")
    assert code_of(client.post("/v1/nodes/7/resume")) == (404, "node_not_found")
    assert code_of(client.delete("/v1/nodes/7")) == (404, "node_not_found")
    assert code_of(client.delete("/v1/nodes/one")) == (422, "invalid_request")
    assert code_of(client.delete("/v1/nodes/7?forced=1")) == (400, "invalid_parameter")
    assert code_of(client.post("/v1/cluster/transfer", json={"node_id": 7})) == (404, "node_not_found")


def test_a_node_with_replicas_is_not_removed(client: httpx.Client, made: str) -> None:
    assert code_of(client.delete("/v1/nodes/1")) == (409, "node_in_use")
    assert client.get(f"/v1/topics/{made}").status_code == 200


def test_a_node_can_be_drained_and_used_again(client: httpx.Client, made: str) -> None:
    try:
        assert client.post("/v1/nodes/1/drain", json={"replicas": False}).json()["moves"] == []
        assert client.get("/v1/nodes").json()["nodes"][0]["status"] == "draining"
        told = client.post(f"/v1/topics/{made}/publish", json={"value": "v"})
        assert told.status_code == 200, "there is nobody else"
    finally:
        client.post("/v1/nodes/1/resume").raise_for_status()
    assert client.get("/v1/nodes").json()["nodes"][0]["status"] == "up"


def test_metrics_tell_of_the_cluster_of_one(client: httpx.Client, made: str) -> None:
    rows = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if not line.startswith("#"))
    assert rows['penstock_nodes{status="up"}'] == "1.0"
    assert rows['penstock_quorum_role{role="leader"}'] == "1.0"
    assert rows[f'penstock_partition_leader{{partition="1",topic="{made}"}}'] == "1.0"
    assert rows["penstock_under_replicated_partitions"] == "0.0"
    assert float(rows["penstock_leader_elections_total"]) >= 2
    assert rows["penstock_quorum_reached"] == "1.0"


def test_a_client_that_claims_to_be_a_node_is_a_client(client: httpx.Client, made: str) -> None:
    headers = {"Penstock-Forwarded": "2", "Penstock-Client": "10.1.2.3"}
    joined = client.post("/v1/groups/claimed/join", json={"topics": [made], "wait_ms": 30_000}, headers=headers)
    assert joined.status_code == 200
    [member] = client.get("/v1/groups/claimed").json()["member_details"]
    assert member["client_host"] == "/127.0.0.1"
