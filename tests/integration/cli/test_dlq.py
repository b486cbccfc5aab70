"""Dead letters from the command line, against a real node."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from penstock.cli.exits import Exit

_numbers = count()


def post(node: Any, path: str, body: object) -> Any:
    request = urllib.request.Request(
        f"{node.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def json_lines(result: subprocess.CompletedProcess[bytes]) -> list[Any]:
    assert result.returncode == Exit.OK, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def topic(node: Any) -> Iterator[str]:
    """A topic with three dead letters."""
    name = f"dying-{next(_numbers)}"
    post(node, "/v1/topics", {"name": name, "partitions": 1})
    for reason, values in (("no stock", ["a", "b"]), ("bad\x1b[31m", ["c"])):
        messages = [{"key": value, "value": value * 100} for value in values]
        post(node, f"/v1/topics/{name}/batch", {"messages": messages})
        found = post(node, f"/v1/queues/{name}/receive", {"max": 10, "wait_ms": 20_000})["messages"]
        receipts = [message["receipt"] for message in found]
        post(node, f"/v1/queues/{name}/reject", {"receipts": receipts, "reason": reason})
    deadline = time.monotonic() + 90
    while len(json_lines(node.run("dlq", "list", name, "-o", "json"))) < 3:
        assert time.monotonic() < deadline
    yield name
    node.run("topic", "delete", name, "--yes", "--if-exists")


def test_dead_letters_are_listed_and_shown(node: Any, topic: str) -> None:
    assert [each["key"] for each in json_lines(node.run("dlq", "list", topic))] == ["a", "b", "c"]
    assert [each["key"] for each in json_lines(node.run("dlq", "list", topic, "--contains", "STOCK", "-n", 1))] == ["a"]
    assert json_lines(node.run("dlq", "list", topic, "--offsets", "1-1", "--since", "1h"))[0]["key"] == "b"
    table = node.run("dlq", "list", topic, "-o", "table")
    assert "0:0" in table.stdout.decode()
    assert "\x1b[31m" not in table.stdout.decode()
    assert f"3 dead letters in {topic}.dlq; scanned 3 of 3." in table.stderr.decode()
    assert json_lines(node.run("dlq", "show", topic, "0:1"))[0]["reason"] == "no stock"
    shown = node.run("dlq", "show", topic, "0:1", "-o", "table").stdout.decode()
    assert f"{topic}, partition 0, offset 1" in shown
    assert "b" * 100 in shown
    reasons = json_lines(node.run("dlq", "reasons", topic))
    assert [(each["reason"], each["count"]) for each in reasons] == [("no stock", 2), ("bad\x1b[31m", 1)]
    assert "no stock" in node.run("dlq", "reasons", topic, "-o", "table").stdout.decode()


def test_dead_letters_are_sent_back(node: Any, topic: str) -> None:
    asked = node.run("dlq", "redrive", topic)
    assert asked.returncode == Exit.USAGE
    assert b"--yes" in asked.stderr
    rehearsed = node.run("dlq", "redrive", topic, "--reason", "no stock", "--dry-run", "-o", "table")
    assert rehearsed.stdout.decode() == f"2 messages would go to {topic}.\n"
    assert json_lines(node.run("dlq", "redrives", topic)) == []
    (done,) = json_lines(node.run("dlq", "redrive", topic, "--place", "0:1", "--yes"))
    assert (done["state"], done["moved"]) == ("done", 1)
    told = node.run("dlq", "redrive", topic, "--yes", "--rate", 1_000, "-o", "table")
    assert told.stdout.decode() == f"Sent back 2 messages of {topic}.\n"
    assert json_lines(node.run("dlq", "list", topic)) == []
    assert len(json_lines(node.run("dlq", "list", topic, "--all"))) == 3
    assert [each["moved"] for each in json_lines(node.run("dlq", "redrives", topic))] == [1, 2]
    assert "done" in node.run("dlq", "redrives", topic, "-o", "table").stdout.decode()


def test_a_redrive_that_is_under_way_is_cancelled(node: Any, topic: str) -> None:
    (job,) = json_lines(node.run("dlq", "redrive", topic, "--yes", "--rate", 0.1, "--no-wait"))
    assert node.run("dlq", "redrive", topic, "--yes").returncode == Exit.CONFLICT
    (ended,) = json_lines(node.run("dlq", "cancel", topic, job["id"]))
    assert ended["state"] == "cancelled"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("list", "no-such-topic"), Exit.NOT_FOUND),
        (("show", "TOPIC", "0:77"), Exit.NOT_FOUND),
        (("show", "TOPIC", "seven"), Exit.USAGE),
        (("list", "TOPIC", "--offsets", "x-y"), Exit.USAGE),
        (("redrive", "TOPIC", "--yes", "--to", "no-such-topic"), Exit.NOT_FOUND),
        (("redrive", "TOPIC", "--yes", "--rate", "0"), Exit.USAGE),
        (("cancel", "TOPIC", "none"), Exit.NOT_FOUND),
    ],
)
def test_exit_codes_mean_something(node: Any, topic: str, words: tuple[str, ...], code: Exit) -> None:
    result = node.run("dlq", *(topic if word == "TOPIC" else word for word in words))
    assert result.returncode == code, result.stderr
