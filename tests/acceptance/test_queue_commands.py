"""Queues at the command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.node import Node, penstock_command
from tests.support.queue_door import Door


@pytest.fixture(scope="module")
def door(node: Node) -> Iterator[Door]:
    opened = Door(node)
    yield opened
    opened.client.close()


# -- the command line --------------------------------------------------------------------------------------------------


class Command:
    def __init__(self, node: Node) -> None:
        self._node = node

    def __call__(self, *args: str, stdin: str = "", code: int = 0) -> str:
        ended = subprocess.run(
            [penstock_command(), "queue", *args, "--url", self._node.http_url],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == code, f"{args}: {ended.stdout}\n{ended.stderr}"
        return ended.stdout if code == 0 else ended.stderr

    def lines(self, *args: str, stdin: str = "") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*args, stdin=stdin).splitlines()]


@pytest.fixture
def queue(node: Node) -> Command:
    return Command(node)


def test_the_command_line_walks_through_a_queue(door: Door, queue: Command, topic: str) -> None:
    door.create(topic)
    queue("send", topic, "one", "two", "-k", "key")
    queue("send", topic, stdin="three\nfour\nfive\n")
    (first,) = queue.lines("receive", topic)
    assert (first["value"], first["key"]) == ("one", "key")
    assert queue.lines("ack", first["receipt"]) == [{"receipt": first["receipt"], "status": "done"}]
    assert queue("receive", topic, "-n", "2", "--ack", "-o", "value") == "two\nthree\n"
    (fourth,) = queue.lines("receive", topic, "-t", "1h")
    queue("extend", fourth["receipt"], "-t", "2m")
    queue("nack", fourth["receipt"], "-d", "0s", "-r", "not now")
    again, fifth = queue.lines("receive", topic, "-n", "2", "-w", "5s")
    assert {again["value"], fifth["value"]} == {"four", "five"}
    (stats,) = queue.lines("stats", topic)
    assert (stats["ready"], stats["in_flight"]) == (0, 2)
    # What receive prints can be acked as it is.
    statuses = queue.lines("ack", stdin="\n".join(map(json.dumps, (again, fifth))))
    assert [row["status"] for row in statuses] == ["done", "done"]
    assert "already_acked" in queue("ack", first["receipt"], code=1)
    assert "malformed" in queue("ack", "nonsense", code=1)


def test_the_command_line_steers_groups(door: Door, queue: Command, topic: str) -> None:
    door.create(topic, 2)
    queue("send", topic, *map(str, range(4)))
    (declared,) = queue.lines("declare", topic, "-g", "g", "-s", "tries=9")
    assert declared["own_settings"] == {"tries": "9"}
    assert {"topic": topic, "group": "g"} in queue.lines("groups")
    table = queue("stats", topic, "-o", "table")
    assert table.splitlines()[0].split() == ["TOPIC", "GROUP", "READY", "IN", "FLIGHT", "WAITING", "DYING", "OLDEST"]
    assert table.splitlines()[1].split()[:3] == [topic, "g", "4"]
    assert max(map(len, table.splitlines())) <= 100
    detail = queue("stats", topic, "-g", "g", "-o", "table")
    assert "tries=9" in detail
    assert len(queue.lines("peek", topic, "-g", "g", "-n", "3")) == 3
    queue("pause", topic, "-g", "g", "-r", "repairs")
    assert "paused (repairs)" in queue("stats", topic, "-g", "g", "-o", "table")
    assert queue.lines("receive", topic, "-g", "g") == []
    queue("resume", topic, "-g", "g")
    queue("purge", topic, "-g", "g", "--yes")
    assert queue.lines("receive", topic, "-g", "g") == []
    queue("seek", topic, "-g", "g", "--to", "earliest", "--yes")
    assert len(queue.lines("receive", topic, "-g", "g", "-n", "10")) == 4
    assert "pass --yes" in queue("forget", topic, "-g", "g", code=2)
    queue("forget", topic, "-g", "g", "--yes")
    queue("stats", topic, "-g", "g", code=3)
    queue("receive", f"{topic}-nowhere", code=3)
    queue("seek", topic, "--yes", code=2)
    queue("receive", topic, "-w", "long", code=2)
