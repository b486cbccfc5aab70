"""The examples run as they are, against a real node, and the README shows what they do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.node import Node

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(example: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(example), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_steps_reads_its_ten_orders_back(node: Node) -> None:
    lines = run(ROOT / "examples" / "first_steps.py", node.bootstrap).splitlines()
    assert sorted(line.split("b'")[2] for line in lines) == sorted(f"order {number}'" for number in range(10))


def test_plain_http_reads_its_message_back(node: Node) -> None:
    assert '{"celsius":21.5}' in run(ROOT / "examples" / "plain_http.py", node.http_url)


def test_rest_group_delivers_every_parcel(node: Node) -> None:
    assert run(ROOT / "examples" / "rest_group.py", node.http_url).splitlines()[-1] == "delivered: 20"


def test_priority_lanes(node: Node) -> None:
    first, shares = run(ROOT / "examples" / "priority_lanes.py", node.http_url).splitlines()
    assert first == "first: refund (critical)"
    assert "critical" in shares


def test_schedules_come_when_they_are_due(node: Node) -> None:
    *came, last = run(ROOT / "examples" / "schedules.py", node.http_url).splitlines()
    assert sorted(line.split(" (")[0] for line in came) == ["brought forward", "in a second", "in half a second"]
    assert last == "still to come: b'good morning' by 0 7 * * mon-fri in Europe/Berlin"


def test_joint_transaction_shows_all_writers_at_once(node: Node) -> None:
    assert run(ROOT / "examples" / "joint_transaction.py", node.http_url).splitlines() == [
        "visible before the commit: 0",
        "left out: ['task-3-failed']",
        "visible after the commit: 400",
    ]


def test_the_client_reads_back_what_it_published(node: Node) -> None:
    assert run(ROOT / "examples" / "client_stream.py", node.http_url).splitlines()[-1] == "read: 50"


def test_workers_deliver_every_parcel_that_has_an_address(node: Node) -> None:
    lines = run(ROOT / "examples" / "client_worker.py", node.http_url).splitlines()
    assert lines[-1] == "delivered: 19"
    assert len(set(lines)) == 20


def test_every_order_is_billed_once_although_one_try_failed(node: Node) -> None:
    assert run(ROOT / "examples" / "client_transaction.py", node.http_url).splitlines() == [
        "the printer is on fire: nothing of it happened",
        "orders: 30, bills: 30, different ones: 30",
    ]


def test_tests_with_the_fixtures_pass() -> None:
    example = ROOT / "examples" / "test_with_penstock.py"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(example)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_says_what_it_is_and_has_a_test(example: Path) -> None:
    assert example.read_text().startswith('"""')
    assert f'"{example.name}"' in Path(__file__).read_text()


def test_the_readme_shows_the_first_steps_as_they_are() -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (snippet,) = (each for each in snippets if "confluent_kafka" in each)
    example = (ROOT / "examples" / "first_steps.py").read_text()
    shown = [line.strip().replace('"127.0.0.1:9092"', "servers") for line in snippet.splitlines() if line.strip()]
    there = [line.strip() for line in example.splitlines()]
    assert [line for line in shown if line not in there] == []
