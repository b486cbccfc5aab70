"""Joint transactions under ``kill -9``: a reader of committed messages sees all of one or nothing, exactly once."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from tests.acceptance.conftest import NodeMaker
from tests.support import joint_writer
from tests.support.node import Node, penstock_command

PARTITIONS = 3
WRITERS = 4
CALLS = 15


def patiently(node: Node, method: str, path: str, **options: Any) -> httpx.Response:
    """Ask until the node answers, as a program does that outlives it."""
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = httpx.request(method, f"{node.http_url}{path}", timeout=10, **options)
            if answer.status_code < 500:
                return answer
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "the node does not come back"
        time.sleep(0.05)


def committed(node: Node, topic: str) -> list[str]:
    return [value for _, value in read(node, topic)]


def read(node: Node, topic: str) -> list[tuple[int, str]]:
    """Everything that a read_committed consumer gets from the beginning to the end, with the partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    values, ended = [], set()
    deadline = time.monotonic() + 60
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, "the reader does not get to the end"
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition())
        else:
            values.append((message.partition(), message.value().decode()))
    consumer.close()
    return values


def written_by(*writers: str, calls: int = CALLS) -> list[str]:
    return [f"{writer}/{number}" for writer in writers for number in range(calls * joint_writer.MESSAGES)]


class Writers:
    """Writer processes of one transaction."""

    def __init__(self, node: Node, topic: str, transaction: str, names: list[str], calls: int = CALLS) -> None:
        script = str(Path(joint_writer.__file__))
        self._processes = [
            subprocess.Popen(
                [sys.executable, script, node.http_url, topic, transaction, name, str(calls)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in names
        ]

    def are_done(self) -> bool:
        return all(process.poll() is not None for process in self._processes)

    def wait(self) -> None:
        for process in self._processes:
            out, _ = process.communicate(timeout=90)
            assert process.returncode == 0, out

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def opened(node: Node, topic: str) -> str:
    patiently(node, "POST", "/v1/topics", json={"name": topic, "partitions": PARTITIONS})
    name: str = patiently(node, "POST", "/v1/transactions", json={"timeout_ms": 300_000}).json()["transaction"]
    return name


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 40))])
def test_four_writers_one_transaction_and_a_node_that_is_killed(make_node: NodeMaker, topic: str, seed: int) -> None:
    rng = random.Random(seed)
    node = make_node().start()
    name = opened(node, topic)
    chosen = [f"task-{number}-attempt-1" for number in range(WRITERS)]
    failed = Writers(node, topic, name, ["task-0-attempt-0"], calls=1000)
    writers = Writers(node, topic, name, chosen)
    kills = 0
    try:
        while not writers.are_done() and kills < 4:
            time.sleep(rng.uniform(0.05, 0.6))
            node.kill()
            node.restart()
            kills += 1
        writers.wait()
    finally:
        writers.kill()
        failed.kill()
    assert kills, "the writers were faster than the killer"
    assert committed(node, topic) == []
    answers = commit_while_killing(node, name, chosen, rng)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].json()["committed_writers"] == sorted(chosen)
    found = read(node, topic)
    assert sorted(value for _, value in found) == sorted(written_by(*chosen))
    for index, writer in itertools.product(range(PARTITIONS), chosen):
        mine = [int(value.split("/")[1]) for at, value in found if (at, value.split("/")[0]) == (index, writer)]
        assert mine == sorted(mine), "messages of a partition keep their order"


def commit_while_killing(node: Node, name: str, writers: list[str], rng: random.Random) -> list[httpx.Response]:
    """Commit with one key from several callers while the node is killed in the middle of it."""
    answers: list[httpx.Response] = []

    def commit() -> None:
        answers.append(
            patiently(
                node,
                "POST",
                f"/v1/transactions/{name}/commit",
                json={"writers": writers},
                headers={"Idempotency-Key": f"batch-{name}"},
            )
        )

    callers = [threading.Thread(target=commit) for _ in range(3)]
    for caller in callers:
        caller.start()
    for _ in range(2):
        time.sleep(rng.uniform(0, 0.03))
        node.kill()
        node.restart()
    for caller in callers:
        caller.join(90)
    commit()  # once more, when all is over
    return answers


@pytest.mark.slow
def test_an_abort_survives_a_kill_and_leaves_nothing(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    name = opened(node, topic)
    writers = Writers(node, topic, name, ["a", "b"], calls=3)
    writers.wait()
    thread = threading.Thread(target=patiently, args=(node, "POST", f"/v1/transactions/{name}/abort"))
    thread.start()
    node.kill()
    node.restart()
    thread.join(60)
    assert patiently(node, "POST", f"/v1/transactions/{name}/abort").json()["aborted_writers"] == ["a", "b"]
    assert committed(node, topic) == []
    patiently(node, "POST", f"/v1/topics/{topic}/publish", json={"value": "after"})
    assert committed(node, topic) == ["after"]


@pytest.mark.slow
def test_a_transaction_that_nobody_ends_times_out_after_a_kill_too(make_node: NodeMaker, topic: str) -> None:
    node = make_node().start()
    patiently(node, "POST", "/v1/topics", json={"name": topic, "partitions": PARTITIONS})
    name = patiently(node, "POST", "/v1/transactions", json={"timeout_ms": 120_000}).json()["transaction"]
    Writers(node, topic, name, ["a"], calls=2).wait()
    patiently(node, "POST", f"/v1/transactions/{name}/extend", json={"timeout_ms": 1_000})  # from now on
    node.kill()
    node.restart()
    deadline = time.monotonic() + 60
    while patiently(node, "GET", f"/v1/transactions/{name}").json()["state"] != "aborted":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert committed(node, topic) == []
    answer = patiently(node, "POST", f"/v1/transactions/{name}/commit", headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (409, "transaction_timed_out")


# -- the command line --------------------------------------------------------------------------------------------------


def txn(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [penstock_command(), "txn", *arguments, "--url", node.http_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_the_command_line_lists_describes_and_aborts(node: Node, topic: str) -> None:
    name = opened(node, topic)
    sent = {"Penstock-Transaction": name, "Penstock-Writer": "w"}
    patiently(node, "POST", f"/v1/topics/{topic}/publish", json={"value": "x", "partition": 1}, headers=sent)
    table = txn(node, "list", "--state", "open", "--kind", "joint", "-o", "table").stdout
    (row,) = [line.split() for line in table.splitlines() if line.startswith(name)]
    assert (row[1:3], row[5:]) == (["joint", "open"], ["1", "1"])
    assert max(map(len, table.splitlines())) <= 100
    assert f'"transaction":"{name}"' in txn(node, "list").stdout
    described = txn(node, "describe", name, "-o", "table").stdout
    assert f"joint transaction {name}: open" in described
    assert f"{topic}:1" in described
    assert txn(node, "abort", name).returncode == 2, "without a terminal it needs --yes"
    assert txn(node, "abort", name, "--yes").returncode == 0
    assert "aborted (client)" in txn(node, "describe", name, "-o", "table").stdout
    assert "Aborted: w" in txn(node, "describe", name, "-o", "table").stdout


def test_the_command_line_ends_with_a_code_that_says_why(node: Node, topic: str) -> None:
    name = opened(node, topic)
    patiently(node, "POST", f"/v1/transactions/{name}/commit")
    ended = txn(node, "abort", name, "--yes")
    assert (ended.returncode, "is committed" in ended.stderr) == (4, True)
    assert txn(node, "describe", "nope/with slash").returncode == 3
    assert txn(node, "abort", "nope", "--yes").returncode == 3
    assert txn(node, "list", "--state", "odd").returncode == 2


# -- transactions of Kafka producers -----------------------------------------------------------------------------------


def test_a_transaction_of_a_kafka_producer_is_shown_and_aborted(node: Node, topic: str) -> None:
    patiently(node, "POST", "/v1/topics", json={"name": topic, "partitions": PARTITIONS})
    name = f"billing/50% of {topic}?"
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": name})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"never seen", partition=1)
    producer.flush(60)
    path = f"/v1/transactions/{quote(name, safe='')}"
    detail = patiently(node, "GET", path).json()
    assert (detail["transaction"], detail["kind"], detail["state"]) == (name, "kafka", "open")
    assert detail["places"] == [{"topic": topic, "partition": 1}]
    assert (detail["producer_epoch"], detail["writers"]) == (0, [])
    listed = patiently(node, "GET", "/v1/transactions?kind=kafka&state=open").json()["transactions"]
    assert name in [row["transaction"] for row in listed]
    assert patiently(node, "GET", f"{path}?kind=joint").status_code == 404
    assert f"{topic}:1" in txn(node, "describe", name, "-o", "table").stdout
    aborted = txn(node, "abort", name, "--yes", "-o", "json")
    assert (aborted.returncode, '"state":"aborted"' in aborted.stdout) == (0, True)
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)
    assert committed(node, topic) == []
    again = patiently(node, "POST", f"{path}/abort")
    assert (again.status_code, again.json()["code"]) == (409, "invalid_transaction_state")


def test_open_transactions_are_counted_by_kind(node: Node, topic: str) -> None:
    def count() -> float:
        page = httpx.get(f"{node.http_url}/metrics").text
        (row,) = [line for line in page.splitlines() if line.startswith('penstock_open_transactions{kind="joint"}')]
        return float(row.split()[-1])

    before = count()
    name = opened(node, topic)
    assert count() == before + 1
    patiently(node, "POST", f"/v1/transactions/{name}/commit")
    assert count() == before
