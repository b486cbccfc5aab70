"""Every door of a cluster that loses nodes, gets one more and lets it go again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import Cluster, command, eventually, known, led_by, rest

from penstock import Client

NODES = (1, 2, 3)


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that the test may break, with a topic of which each node leads a partition."""
    with Cluster(tmp_path, groups__initial_delay_ms=100) as running:
        rest(running, 1).post("/v1/topics", json={"name": "t", "partitions": 3}).raise_for_status()
        eventually(lambda: running.replicas_in_sync("t") == [list(NODES)] * 3, what="in sync")
        eventually(lambda: all("t" in known(running, number) for number in NODES), what="the topic everywhere")
        assert sorted(running.leaders("t")) == list(NODES)
        yield running


def test_requests_outlive_the_node_that_would_have_answered_them(fragile: Cluster) -> None:
    with rest(fragile, 1) as client:
        groups = [f"group-{at}" for at in range(8)]
        members = {}
        for group in groups:
            joined = client.post(f"/v1/groups/{group}/join", json={"topics": ["t"]})
            assert joined.status_code == 200, joined.text
            members[group] = joined.json()["member_id"]
        index = led_by(fragile, "t", 3)
        fragile.nodes[3].kill()
        told = client.post("/v1/topics/t/publish", json={"value": "v", "partition": index})
        assert told.status_code == 200, told.text
        for group in groups:  # whoever coordinates it now
            body = {"topics": ["t"], "member_id": members[group]}
            joined = client.post(f"/v1/groups/{group}/join", json=body)
            assert (joined.status_code, len(joined.json()["partitions"])) == (200, 3), joined.text
        listed = [each["group"] for each in client.get("/v1/groups").json()["groups"]]
        assert listed == groups
        status = client.get("/v1/cluster").json()
        assert [node["status"] for node in status["nodes"]] == ["up", "up", "fenced"]
        assert status["under_replicated"] >= 3
    checked = command(fragile, "cluster", "status", "--check")
    assert (checked.returncode, "node 3 is away" in checked.stderr) == (1, True)
    fragile.nodes[3].restart()
    eventually(lambda: command(fragile, "cluster", "status", "--check").returncode == 0, 60, "a whole cluster")


def test_a_node_that_lost_the_others_says_so_and_promises_nothing(fragile: Cluster) -> None:
    index = fragile.leaders("t").index(1)
    for number in (2, 3):
        fragile.nodes[number].kill()
    with rest(fragile, 1) as client:
        eventually(lambda: client.get("/readyz").status_code == 503, what="not ready")
        unready = client.get("/readyz").json()
        assert [reason["code"] for reason in unready["reasons"]] == ["no_quorum"]
        assert client.get("/livez").status_code == 200
        began = time.monotonic()
        told = client.post("/v1/topics/t/publish", json={"value": "v", "partition": index})
        assert (told.status_code, told.json()["code"]) == (503, "not_leader")
        assert told.headers["retry-after"] == "1"
        assert time.monotonic() - began < 20
        assert client.get("/v1/cluster").json()["controller"] is None
        assert client.get("/metrics").status_code == 200
    fragile.nodes[2].restart()
    with rest(fragile, 1) as client:
        eventually(lambda: client.get("/readyz").status_code == 200, 60, "ready again")
        eventually(
            lambda: client.post("/v1/topics/t/publish", json={"value": "v", "partition": index}).status_code == 200,
            60,
            "writes again",
        )


def test_a_leader_without_its_peers_answers_soon_what_it_cannot_commit(fragile: Cluster) -> None:
    index = fragile.leaders("t").index(1)
    for number in (2, 3):
        fragile.nodes[number].pause()
    try:
        with rest(fragile, 1) as client:
            began = time.monotonic()
            told = client.post("/v1/topics/t/publish", json={"value": "v", "partition": index})
            took_s = time.monotonic() - began
    finally:
        for number in (2, 3):
            fragile.nodes[number].resume()
    assert told.status_code == 503, told.text
    assert told.json()["code"] in {"request_timed_out", "not_leader"}
    assert took_s < 9, "it knows after a session of two seconds that it may have been replaced"
    with rest(fragile, 1) as client:
        eventually(
            lambda: client.post("/v1/topics/t/publish", json={"value": "v", "partition": index}).status_code == 200,
            60,
            "writes again",
        )


def test_a_paused_leader_costs_no_longer_than_its_successor_takes(fragile: Cluster) -> None:
    """Its connections stay open and say nothing, unlike those of a node that died."""
    index = fragile.leaders("t").index(3)
    paused, other = fragile.nodes[3], fragile.nodes[1]
    with rest(fragile, 1) as client, Client(paused.http_url, other.http_url) as sdk:
        sdk.publish("t", "before", partition=index)
        paused.pause()
        try:
            began = time.monotonic()
            told = client.post("/v1/topics/t/publish", json={"value": "once or never", "partition": index})
            answered_s = time.monotonic() - began
            sdk.publish("t", "by the client", partition=index)  # which asks again, and is recognised
            published_s = time.monotonic() - began
            assert fragile.leaders("t")[index] != 3
        finally:
            paused.resume()
        print(f"answered after {answered_s:.1f} s, published after {published_s:.1f} s")
        assert told.status_code == 200 or told.json()["retriable"], told.text
        assert answered_s < 20, "a link that is silent for two seconds is given up"
        assert published_s < 25, "and the client asks another node"
        eventually(lambda: fragile.replicas_in_sync("t") == [list(NODES)] * 3, what="in sync again")
        page = client.get(f"/v1/topics/t/messages?partition={index}").json()
        found = [each["value"] for each in page["messages"] if each["value"] != "once or never"]
        assert found == ["before", "by the client"]
        assert len(page["messages"]) <= 3


def test_a_drain_tells_what_has_nowhere_to_go(fragile: Cluster) -> None:
    told = command(fragile, "cluster", "drain", 2, "--timeout", 60)
    assert told.returncode == 1, told.stdout
    assert "t (3 partitions): It has 3 replicas, and only 2 other nodes can take them." in told.stderr
    assert "topic reassign" in told.stderr
    assert {each["topic"] for each in json.loads(told.stdout)["stuck"]} >= {"t"}
    moved = command(fragile, "topic", "reassign", "t", "--nodes", "1,3", "-r", 2, "--timeout", 60)
    assert moved.returncode == 0, moved.stderr
    with rest(fragile, 1) as client:
        plan = client.post("/v1/nodes/2/drain", json={"replicas": True}).json()
    assert "t" not in {each["topic"] for each in plan["stuck"]}, "two replicas have room on two nodes"


def test_a_drain_that_waits_for_a_node_that_is_away_says_so(fragile: Cluster) -> None:
    fragile.add(4)
    assert command(fragile, "cluster", "join", 4, "--wait", 60).returncode == 0
    with rest(fragile, 1) as client:
        client.post("/v1/topics", json={"name": "two", "replication_factor": 2}).raise_for_status()
    placed = command(fragile, "topic", "reassign", "two", "--nodes", "2,4", "--timeout", 60)
    assert placed.returncode == 0, placed.stderr
    fragile.nodes[2].kill()
    eventually(lambda: {each["node_id"]: each["status"] for each in fragile.ask("/v1/nodes")["nodes"]}[2] == "fenced")
    late = command(fragile, "cluster", "drain", 4, "--timeout", 15)
    assert late.returncode == 5, late.stderr
    assert "two-0" in late.stderr, "one of its two replicas is all that is left: it may not go before another is back"
    assert "node 2, which is away" in late.stderr
    fragile.nodes[2].restart()
    drained = command(fragile, "cluster", "drain", 4, "--timeout", 60)
    assert drained.returncode == 0, drained.stderr


def test_a_node_joins_takes_its_share_and_leaves_again(fragile: Cluster) -> None:
    with rest(fragile, 1) as client:
        batch = [{"value": f"v{at}", "partition": at % 3} for at in range(300)]
        client.post("/v1/topics/t/batch", json={"messages": batch}).raise_for_status()
    told = json.loads(command(fragile, "cluster", "join", 4).stdout)
    assert (told["joined"], told["command"][:4]) == (False, ["penstock", "serve", "--node-id", "4"])
    assert told["command"][-2:] == ["--join", fragile.nodes[1].internal]
    assert command(fragile, "cluster", "join", 4, "--wait", 0.1).returncode == 5
    fragile.add(4)
    assert json.loads(command(fragile, "cluster", "join", 4, "--wait", 60).stdout)["joined"] is True
    planned = json.loads(command(fragile, "cluster", "rebalance", "--dry-run").stdout)
    assert planned["moves"], "the new node has nothing yet"
    done = command(fragile, "cluster", "rebalance", "--timeout", 60, number=4)
    assert done.returncode == 0, done.stderr
    node = next(each for each in fragile.ask("/v1/nodes")["nodes"] if each["node_id"] == 4)
    assert node["replicas"] > 0
    refused = command(fragile, "cluster", "remove", 4, "--yes")
    assert (refused.returncode, "Drain it" in refused.stderr) == (4, True)
    drained = command(fragile, "cluster", "drain", 4, "--timeout", 60)
    assert drained.returncode == 0, drained.stderr
    assert json.loads(drained.stdout)["replicas"] == 0
    began = time.monotonic()
    removed = command(fragile, "cluster", "remove", 4, "--yes", number=4)  # the node that goes is asked itself
    assert removed.returncode == 0, removed.stderr
    assert time.monotonic() - began < 14, "it must not wait for what it will never hear"
    fragile.nodes[4].kill()
    eventually(lambda: [each["node_id"] for each in fragile.ask("/v1/nodes")["nodes"]] == list(NODES), what="gone")
    with rest(fragile, 2) as client:
        values = [
            each["value"]
            for index in range(3)
            for each in client.get(f"/v1/topics/t/messages?partition={index}").json()["messages"]
        ]
    assert len(values) == 300
    assert command(fragile, "cluster", "drain", 9).returncode == 3
