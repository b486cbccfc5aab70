"""Topic to topic through a shuffle while driver, JVM, workers and broker are killed: every row is seen exactly once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from tests.support import spark_driver
from tests.support.node import Node

from penstock.client.generated.sync import Client

KILLS = int(os.environ.get("PENSTOCK_SPARK_KILLS", "20"))
SEED = int(os.environ.get("PENSTOCK_SEED", "7"))
PARTITIONS = 3
_STEP_S = 300.0  # a session alone takes a minute where many others want the machine
_AHEAD = 6  # batches that wait to be run
VICTIMS = os.environ.get("PENSTOCK_SPARK_VICTIMS", "driver,jvm,worker,broker").split(",")


class Driver:
    """The job as a process, begun again whenever it is dead."""

    def __init__(self, node: Node, directory: Path) -> None:
        self._arguments = [node.http_url, "in", "out", str(directory / "checkpoint")]
        self._log = directory / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def ensure(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self.starts += 1
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, str(Path(spark_driver.__file__)), *self._arguments],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def batches(self) -> int:
        """How many batches were reported done, by all drivers so far."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return text.count("\nbatch ")

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-6_000:]

    def kill(self, victim: str) -> bool:
        """Kill one of its processes without a warning; False if there is no such process now."""
        assert self._process is not None
        found = self._find(victim)
        if found is None:
            return False
        found.send_signal(signal.SIGKILL)
        return True

    def _find(self, victim: str) -> psutil.Process | None:
        assert self._process is not None
        try:
            driver = psutil.Process(self._process.pid)
            below = driver.children(recursive=True)
            if victim == "driver":
                return driver
            if victim == "jvm":
                return next((each for each in below if "java" in each.name()), None)
            workers = [each for each in below if _is_worker(each)]
            return workers[-1] if workers else None
        except psutil.Error:
            return None

    def stop(self) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)  # its own session: all that it started
            except ProcessLookupError:
                pass
            self._process.wait()


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "pyspark.daemon" in " ".join(process.cmdline())
    except psutil.Error:  # it has just ended, or nobody has waited for it yet
        return False


class Producer:
    """Publishes numbers, always some batches ahead of the job, until it is told to stop."""

    def __init__(self, node: Node, batches: Callable[[], int]) -> None:
        self._client = Client(node.http_url, timeout=300, delivery_timeout=300)
        self._batches = batches
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.1):
            if self.sent >= (self._batches() + _AHEAD) * spark_driver.ROWS_A_BATCH:
                continue
            numbers = range(self.sent, self.sent + 60)
            self._client.publish_many("in", [b"%d" % number for number in numbers])
            self.sent += 60

    def stop(self) -> int:
        self._stopping.set()
        self._thread.join(_STEP_S)
        assert not self._thread.is_alive()
        self._client.close()
        return self.sent


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path / "node") as running:
        yield running


def committed(node: Node) -> list[int]:
    """Every row that a reader of committed messages gets, up to the end."""
    settings = {
        "bootstrap.servers": node.bootstrap,
        "group.id": "unused",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition("out", index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    rows: list[int] = []
    ended: set[int] = set()
    deadline = time.monotonic() + _STEP_S
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, "the reader does not get to the end"
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition())
        else:
            rows.append(int(message.value()))
    consumer.close()
    return rows


def victims(dice: random.Random) -> Iterator[str]:
    """Whom to kill next, without end: in rounds, so that chance leaves nobody out."""
    while True:
        yield from dice.sample(VICTIMS, len(VICTIMS))


def wait_for_batches(driver: Driver, count: int) -> None:
    """Wait until so many more batches are done, beginning the job again where it died."""
    wanted = driver.batches() + count
    deadline = time.monotonic() + _STEP_S
    while driver.batches() < wanted:
        driver.ensure()
        assert time.monotonic() < deadline, f"the job does not go on\n{driver.log_tail()}"
        time.sleep(0.1)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_every_row_is_there_once_though_everything_is_killed(node: Node, tmp_path: Path) -> None:
    dice = random.Random(SEED)
    with Client(node.http_url) as client:
        client.create_topic("in", partitions=2)
        client.create_topic("out", partitions=PARTITIONS)
    driver = Driver(node, tmp_path)
    producer = Producer(node, driver.batches)
    kills: Counter[str] = Counter()
    order = victims(dice)
    try:
        while kills.total() < KILLS:
            wait_for_batches(driver, dice.randint(1, 3))
            time.sleep(dice.random())  # anywhere in a batch
            victim = next(order)
            if victim == "broker":
                node.kill()
                time.sleep(dice.random())
                node.start()
            elif not driver.kill(victim):
                continue
            kills[victim] += 1
            print(f"kill {kills.total()}: {victim} after {driver.batches()} batches, {producer.sent} rows", flush=True)
        sent = producer.stop()
        deadline = time.monotonic() + _STEP_S
        while len(rows := committed(node)) < sent and time.monotonic() < deadline:
            driver.ensure()
            time.sleep(1)
        wait_at_rest(node, driver)
        rows = committed(node)
    finally:
        driver.stop()
    counted = Counter(rows)
    doubled = [number for number, times in counted.items() if times > 1]
    print(f"{sent} rows, {driver.batches()} batches, {driver.starts} drivers, kills {dict(kills)}", flush=True)
    assert not doubled, f"{len(doubled)} rows are seen more than once, such as {doubled[:5]}"
    assert sorted(counted) == list(range(sent))


def wait_at_rest(node: Node, driver: Driver) -> None:
    """Let whoever still runs write what it would write twice."""
    for _ in range(5):
        driver.ensure()
        time.sleep(1)
    assert node.is_running
