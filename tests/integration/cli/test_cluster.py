"""The cluster from the command line, against a real node that is alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.cli.exits import Exit


@pytest.fixture(scope="module")
def topic(node: Any) -> str:
    assert node.run("topic", "create", "here", "--partitions", 2).returncode == Exit.OK
    return "here"


def test_the_status_is_for_people_and_for_programs(node: Any, topic: str) -> None:
    found = json.loads(node.run("cluster", "status").stdout)
    assert (found["controller"], len(found["nodes"]), found["topics"]) == (1, 1, 1)
    table = node.run("cluster", "status", "-o", "table").stdout.decode()
    assert "1 node, controller 1" in table
    assert "1 topic, 2 partitions: 0 under-replicated, 0 without a leader, 0 moving" in table
    assert max(map(len, table.splitlines())) <= 120
    assert node.run("cluster", "status", "--check").returncode == Exit.OK
    [row] = node.run("cluster", "nodes", "-o", "table").stdout.decode().splitlines()[1:]
    assert row.split()[:5] == ["1", "up", "-", "2", "2"]
    assert f"127.0.0.1:{node.kafka_port}" in row
    [line] = node.run("cluster", "nodes").stdout.splitlines()
    assert json.loads(line)["node_id"] == 1
    assert topic in node.run("topic", "list").stdout.decode()


def test_waiting_for_the_cluster_ends_when_it_is_whole_or_the_time_is_over(node: Any) -> None:
    assert node.run("cluster", "status", "--wait", 60).returncode == Exit.OK
    nowhere = node.run("cluster", "status", "--wait", 0.1, "--url", "http://127.0.0.1:1")
    assert nowhere.returncode == Exit.UNAVAILABLE
    assert b"Not ready within 0.1 s. Cannot reach a node" in nowhere.stderr


def test_a_node_without_an_internal_address_cannot_be_joined(node: Any) -> None:
    refused = node.run("cluster", "join")
    assert refused.returncode == Exit.FAILURE
    assert b"--internal" in refused.stderr


def test_how_to_join_is_told_exactly(start_node: Callable[..., Any]) -> None:
    node = start_node("--internal", "127.0.0.1:0")
    told = json.loads(node.run("cluster", "join").stdout)
    internal = next(
        f"{at['host']}:{at['port']}"
        for at in json.loads(node.run("cluster", "nodes").stdout)["endpoints"]
        if at["door"] == "internal"
    )
    assert (told["node_id"], told["joined"]) == (2, False)
    assert told["command"][-2:] == ["--join", internal]
    assert json.loads(node.run("cluster", "join", 1).stdout) == {"node_id": 1, "joined": True, "command": []}
    text = node.run("cluster", "join", 5, "-o", "table").stdout.decode()
    assert "penstock serve --node-id 5 --data-dir /var/lib/penstock-5" in text
    assert f"--join {internal}" in text
    assert node.run("cluster", "join", 5, "--wait", 0.2).returncode == Exit.UNAVAILABLE


def test_a_node_is_not_removed_by_accident(node: Any, topic: str) -> None:
    assert node.run("cluster", "remove", 1).returncode == Exit.USAGE, "there is no terminal to ask on"
    refused = node.run("cluster", "remove", 1, "--yes")
    assert (refused.returncode, b"Drain it" in refused.stderr) == (Exit.CONFLICT, True)
    assert node.run("cluster", "remove", 9, "--yes").returncode == Exit.NOT_FOUND
    assert topic in node.run("topic", "list").stdout.decode()


def test_a_drained_node_is_used_again(node: Any) -> None:
    drained = json.loads(node.run("cluster", "drain", 1, "--leaders-only").stdout)
    assert drained["status"] == "draining"
    assert json.loads(node.run("cluster", "resume", 1).stdout)["status"] == "up"
    assert node.run("cluster", "drain", 9).returncode == Exit.NOT_FOUND


def test_there_is_nothing_to_balance(node: Any) -> None:
    assert json.loads(node.run("cluster", "rebalance").stdout) == {"dry_run": False, "moves": [], "stuck": []}
    assert "The cluster is balanced" in node.run("cluster", "rebalance", "--dry-run", "-o", "table").stdout.decode()


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((), Exit.USAGE),
        (("--nodes", "1", "--cancel"), Exit.USAGE),
        (("--nodes", "one"), Exit.USAGE),
        (("--move", "0"), Exit.USAGE),
        (("--move", "x:1"), Exit.USAGE),
        (("--cancel", "-r", "1"), Exit.USAGE),
        (("--nodes", "7"), Exit.NOT_FOUND),
        (("--move", "0:7"), Exit.USAGE),
    ],
)
def test_a_move_that_makes_no_sense_is_refused(node: Any, topic: str, args: tuple[str, ...], code: Exit) -> None:
    refused = node.run("topic", "reassign", topic, *args)
    assert (refused.returncode, refused.stdout) == (code, b"")
    assert refused.stderr


def test_a_topic_stays_where_it_is(node: Any, topic: str) -> None:
    moved = node.run("topic", "reassign", topic, "--nodes", "1", "--timeout", 10)
    assert json.loads(moved.stdout)["partition_details"][0]["replicas"] == [1]
    assert "Moved 2 partitions" in node.run("topic", "reassign", topic, "--nodes", "1", "-o", "table").stdout.decode()
    assert "Nothing is moving" in node.run("topic", "reassign", topic, "--status", "-o", "table").stdout.decode()
    assert node.run("topic", "reassign", topic, "--status").stdout == b""
    assert node.run("topic", "reassign", "nowhere", "--status").returncode == Exit.NOT_FOUND
    assert node.run("topic", "reassign", topic, "--cancel").returncode == Exit.OK


def test_settings_of_a_node_and_of_all_nodes_are_shown_and_changed(node: Any) -> None:
    rate = "leader.replication.throttled.rate"
    assert node.run("cluster", "config").stdout == b""
    [line] = node.run("cluster", "config", "-c", f"{rate}=5000").stdout.splitlines()
    assert (json.loads(line)["value"], json.loads(line)["origin"]) == ("5000", "cluster")
    rows = [line.split() for line in node.run("cluster", "config", 1, "-o", "table").stdout.decode().splitlines()]
    assert rows[0] == ["SETTING", "VALUE", "FROM"]
    assert [rate, "5000", "cluster"] in rows
    assert ["node.id", "1", "startup"] in rows
    assert node.run("cluster", "config", "--unset", rate).returncode == Exit.OK
    assert node.run("cluster", "config", 1, "-c", "node.id=2").returncode == Exit.USAGE
    assert node.run("cluster", "config", 9).returncode == Exit.NOT_FOUND


def test_settings_of_a_group_are_shown_and_changed(node: Any) -> None:
    session = "consumer.session.timeout.ms"
    rows = node.run("group", "config", "billing", "-c", f"{session}=9000", "-o", "table").stdout.decode().splitlines()
    assert [session, "9000", "group"] in [row.split() for row in rows]
    refused = node.run("group", "config", "billing", "-c", f"{session}=soon")
    assert refused.returncode == Exit.USAGE
    assert b"not a number of milliseconds" in refused.stderr
    [*lines] = map(json.loads, node.run("group", "config", "billing", "-u", session).stdout.splitlines())
    assert {each["name"]: each["origin"] for each in lines}[session] == "default"
