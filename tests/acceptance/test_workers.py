"""Worker functions against a real node: leases renewed, retries, stops in good order, and the command line."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.acceptance.conftest import NodeMaker
from tests.support.node import Node, penstock_command

import penstock
from penstock import AsyncQueueMessage, Client, QueueMessage
from penstock.api.queues import DescribeQueueGroup


def wait_for(condition: Callable[[], bool], limit_s: float = 90.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@contextmanager
def running(app: penstock.App) -> Iterator[threading.Thread]:
    """An app in a thread of its own, stopped in good order at the end."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            app.run()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        app.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert failures == []


def state_of(client: Client, topic: str, group: str) -> Counter[str]:
    """How many messages are ready, in flight and waiting."""
    found = client.call(DescribeQueueGroup(topic=topic, group=group))
    return Counter({name: getattr(found, name) for name in ("ready", "in_flight", "waiting")})


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with Client(node.http_url) as made:
        yield made


def test_sync_and_async_handlers_do_every_message_once(node: Node, client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=3)
    client.publish_many(topic, [str(number) for number in range(300)])
    app = penstock.App(node.http_url)
    seen: dict[str, list[str]] = {"async": [], "sync": [], "batch": []}

    @app.worker(topic, group="async")
    async def handle(message: AsyncQueueMessage) -> None:
        await asyncio.sleep(0.001)
        seen["async"].append(message.text)

    @app.worker(topic, group="sync")
    def handle_sync(message: QueueMessage) -> None:
        seen["sync"].append(message.text)

    @app.worker(topic, group="batch", batch=20, concurrency=2)
    def handle_many(messages: Sequence[QueueMessage]) -> None:
        assert 1 <= len(messages) <= 20
        seen["batch"] += [message.text for message in messages]

    with running(app):
        wait_for(lambda: all(len(found) >= 300 for found in seen.values()))
    for group, found in seen.items():
        assert sorted(found, key=int) == [str(number) for number in range(300)], group
        assert state_of(client, topic, group).total() == 0, group


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lease_is_renewed_while_the_handler_blocks_its_thread_or_loop(
    node: Node, client: Client, topic: str, is_async: bool
) -> None:
    client.publish(topic, "slow")
    calls: list[int] = []

    may_end = threading.Event()

    def block(message: penstock.LeasedMessage) -> None:
        calls.append(message.delivery_count)
        may_end.wait(60)

    async def block_loop(message: penstock.LeasedMessage) -> None:
        block(message)

    slow = penstock.worker(topic, visibility_timeout=4)(block_loop if is_async else block)
    with running(penstock.App(node.http_url, workers=[slow])):
        wait_for(lambda: len(calls) == 1)
        time.sleep(4.5)  # longer than the lease that it began with
        assert state_of(client, topic, "default")["in_flight"] == 1
        may_end.set()
        wait_for(lambda: state_of(client, topic, "default").total() == 0)
    assert calls == [1]


def test_failures_are_tried_again_and_then_given_up(node: Node, client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1, queue_retry_base_ms=50, queue_tries=3)
    client.publish_many(topic, ["fails once", "fails always", "rejected", "later", "fine"])
    calls: Counter[str] = Counter()
    times: dict[str, list[float]] = {}

    @penstock.worker(topic)
    def handle(message: QueueMessage) -> None:
        text = message.text
        calls[text] += 1
        times.setdefault(text, []).append(time.monotonic())
        if text == "fails always" or (text == "fails once" and calls[text] == 1):
            raise ValueError(f"{text} did")
        if text == "rejected":
            raise penstock.Reject("not our kind")
        if text == "later" and calls[text] == 1:
            raise penstock.Retry(1.0)

    with running(penstock.App(node.http_url, workers=[handle])):
        wait_for(lambda: calls["later"] == 2 and calls["fails always"] == 3)
        wait_for(lambda: state_of(client, topic, "default").total() == 0)
    assert calls == {"fails once": 2, "fails always": 3, "rejected": 1, "later": 2, "fine": 1}
    assert times["later"][1] - times["later"][0] >= 0.95
    letters = client.queue(f"{topic}.dlq").receive(10, wait=20)
    assert {letter.text: letter.headers["penstock-dlq-reason"] for letter in letters} == {
        "rejected": b"not our kind",
        "fails always": b"ValueError: fails always did",
    }


def test_a_stop_finishes_what_runs_and_gives_back_the_rest(node: Node, client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    client.publish_many(topic, [str(number) for number in range(20)])
    begun: list[str] = []
    ended: list[str] = []
    may_end = threading.Event()

    @penstock.worker(topic, concurrency=2, prefetch=6)
    def handle(message: QueueMessage) -> None:
        begun.append(message.text)
        may_end.wait(60)
        ended.append(message.text)

    app = penstock.App(node.http_url, workers=[handle])
    with running(app) as thread:
        wait_for(lambda: len(begun) == 2)
        wait_for(lambda: state_of(client, topic, "default")["in_flight"] == 8)  # not all twenty
        app.stop()
        time.sleep(0.2)
        assert thread.is_alive()
        may_end.set()
    assert sorted(begun) == sorted(ended) == ["0", "1"]
    rest = client.queue(topic).receive(20)
    assert [message.text for message in rest] == [str(number) for number in range(2, 20)]
    assert {message.delivery_count for message in rest} == {1}  # those given back were not tried


def test_handlers_that_do_not_end_in_time_are_left_behind(node: Node, client: Client, topic: str) -> None:
    client.publish(topic, "x")
    begun = threading.Event()

    @penstock.worker(topic, stop_timeout=0.3)
    async def handle(message: AsyncQueueMessage) -> None:
        begun.set()
        await asyncio.sleep(60)

    began = time.monotonic()
    with running(penstock.App(node.http_url, workers=[handle])):
        assert begun.wait(60)
    assert time.monotonic() - began < 50
    (again,) = client.queue(topic).receive(1, wait=20)  # the handler was cancelled, so it is free at once
    assert again.text == "x"


def test_a_handler_may_settle_its_message_itself(node: Node, client: Client, topic: str) -> None:
    client.publish_many(topic, ["a", "b"])
    done: list[str] = []

    async def handle(message: AsyncQueueMessage) -> None:
        await message.extend(20)
        await message.ack()
        done.append(message.text)

    def handle_sync(message: QueueMessage) -> None:
        message.extend(20)
        message.ack()
        done.append(message.text)

    workers = [penstock.worker(topic, group="a")(handle), penstock.worker(topic, group="b")(handle_sync)]
    with running(penstock.App(node.http_url, workers=workers)):
        wait_for(lambda: len(done) == 4)
    assert state_of(client, topic, "a").total() == state_of(client, topic, "b").total() == 0


def test_workers_outlive_their_node_and_acked_messages_never_return(make_node: NodeMaker, topic: str) -> None:
    node = make_node()
    node.start()
    calls: Counter[str] = Counter()

    @penstock.worker(topic, visibility_timeout=2, concurrency=4)
    def handle(message: QueueMessage) -> None:
        calls[message.text] += 1
        time.sleep(0.005)

    with Client(node.http_url, delivery_timeout=50) as client:
        client.create_topic(topic, partitions=2)
        with running(penstock.App(node.http_url, workers=[handle])):
            for start in range(0, 600, 200):
                client.publish_many(topic, [str(number) for number in range(start, start + 200)])
                time.sleep(0.3)
                node.kill()
                node.restart()
            wait_for(lambda: len(calls) == 600)
            wait_for(lambda: state_of(client, topic, "default").total() == 0)
            settled = calls.total()
            time.sleep(2.5)  # longer than a lease
            assert calls.total() == settled


# -- the command -------------------------------------------------------------------------------------------------------

MODULE = """
import penstock, time

app = penstock.App()

@app.worker("{topic}", group="g")
def handle(message):
    print("handled", message.text, flush=True)
    time.sleep(3)

single = penstock.worker("{topic}")(print)
nothing = 5
"""


def command(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [penstock_command(), "worker", *arguments], cwd=directory, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_runs_an_app_until_it_is_told_to_stop(
    node: Node, client: Client, topic: str, tmp_path: Path, number: signal.Signals
) -> None:
    """Also as a background job of a script, which begins with SIGINT ignored."""
    (tmp_path / "jobs.py").write_text(MODULE.format(topic=topic))
    client.publish_many(topic, ["a", "b", "c"])
    process = subprocess.Popen(
        [penstock_command(), "worker", "jobs:app", "--url", node.http_url, "--concurrency", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("handled ")
    process.send_signal(number)
    out, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert out == ""
    assert "started: 1 at a time" in log
    assert "1 done, 0 failed" in log
    assert len(client.queue(topic, "g").receive(10, wait=20)) == 2


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("absent:app", 3, "There is no module 'absent'"),
        ("jobs:typo", 3, "has no 'typo'; it has app, handle, single"),
        ("jobs:nothing", 2, "is a int; give a penstock.App"),
        ("broken:app", 1, "Module 'broken' cannot be imported: ZeroDivisionError"),
        ("lacking:app", 1, "No module named 'surely_not_there'"),
        ("jobs.py", 3, "There is no module 'jobs.py'"),
        ("a b:app", 2, "is not MODULE:APP"),
        ("empty:app", 2, "has no workers"),
    ],
)
def test_the_command_says_what_is_wrong_with_its_target(tmp_path: Path, target: str, code: int, message: str) -> None:
    (tmp_path / "jobs.py").write_text(MODULE.format(topic="t"))
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "lacking.py").write_text("import surely_not_there")
    (tmp_path / "empty.py").write_text("import penstock\napp = penstock.App()")
    done = command(tmp_path, target)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code
