"""The scenario "transactions": consume, transform, produce, exactly once, while the application is killed.

A worker reads a topic as the member of a group and writes its results to another, with its offsets in the same
transaction. Every fifth transaction is aborted and done again; the worker is killed in different states of one, and
comes back under the same transactional id. Then whoever reads what is committed sees each result once, and whoever
reads everything sees more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.group import Feed, Member, wait_until

from bench.compat.brokers import Running
from bench.compat.steps import Result, StepFailedError, run, step
from bench.targets import REPO

PARTITIONS = 3
PATIENCE_S = 60.0
COMMITS_MIN = 5
# The state that a worker is in when it is killed: its results are written and its offsets maybe added, it just aborted,
# it just committed.
KILLED_WHEN = ("sent", "aborted", "committed")


@runtime_checkable
class Transacts(Protocol):
    """A client that works in transactions."""

    name: str

    @property
    def worker(self) -> list[str]:
        """The program that works, to be given --bootstrap, --group, --input, --output, --id and --diary."""

    @property
    def reader(self) -> list[str]:
        """The program that prints a topic until "end" in each partition; --bootstrap, --topic and --isolation."""


def play(client: Transacts, broker: Running) -> Iterator[Result]:
    scene = Scene(client, broker)
    yield step(client.name, "transactions under kill -9", scene.work)
    for isolation in ("committed", "uncommitted"):
        yield step(client.name, f"read {isolation} results", partial(scene.check, isolation))


class Scene:
    """One client's two topics and what has happened to them."""

    def __init__(self, client: Transacts, broker: Running) -> None:
        self._client = client
        self._broker = broker
        self._input = f"orders-{client.name}"
        self._output = f"results-{client.name}"
        self._group = f"workers-{client.name}"
        self._directory = broker.scratch / f"transactions-{client.name}"
        self._sent: set[str] = set()
        self._workers: list[Member] = []
        self._watcher = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": self._group})

    def work(self) -> str:
        """Kill the worker in each of the states, let the last one finish, and mark the end of the results."""
        self._directory.mkdir()
        for topic in (self._input, self._output):
            self._broker.create_topic(topic, PARTITIONS)
        feed = Feed(self._broker.bootstrap, self._input, PARTITIONS, pause_s=0.02)
        try:
            for number, state in enumerate(KILLED_WHEN):
                self._start(number)
                self._wait_until(number, state)
                self._workers[number].crash()
            last = self._start(len(KILLED_WHEN))
            self._wait_until(len(KILLED_WHEN), "aborted")
            self._sent = feed.stop()
            wait_until("every order is done", partial(self._is_done, last), PATIENCE_S)
        finally:
            feed.stop()
            for worker in self._workers:
                worker.crash()
            self._watcher.close()
        self._mark_end()
        states = Counter(state for number in range(len(self._workers)) for state in self._states(number))
        return f"{len(KILLED_WHEN)} kills, {states['committed']} commits, {states['aborted']} aborts"

    def check(self, isolation: str) -> str:
        """Read the results with the client's own reader."""
        if not self._sent:
            raise StepFailedError("there are no results to read")
        where = ["--bootstrap", self._broker.bootstrap, "--topic", self._output, "--isolation", isolation]
        results = Counter(run([*self._client.reader, *where], cwd=REPO))
        expected = {f"done:{value}" for value in self._sent}
        missing, unknown = expected - results.keys(), results.keys() - expected
        if missing or unknown:
            raise StepFailedError(f"{len(missing)} results are missing, {len(unknown)} come from nowhere")
        doubled = [value for value, count in results.items() if count > 1]
        if isolation == "committed" and doubled:
            raise StepFailedError(f"{len(doubled)} results are there more than once, such as {sorted(doubled)[:3]}")
        if isolation == "uncommitted" and not doubled:
            raise StepFailedError("what was aborted is not in the log")
        return f"{results.total()} results of {len(expected)} orders"

    def _start(self, number: int) -> Member:
        arguments = ["--bootstrap", self._broker.bootstrap, "--group", self._group]
        arguments += ["--input", self._input, "--output", self._output, "--id", f"worker-{self._client.name}"]
        diary = self._diary(number)
        self._workers.append(Member(diary, [*self._client.worker, *arguments, "--diary", str(diary)]))
        return self._workers[-1]

    def _diary(self, number: int) -> Path:
        return self._directory / f"worker-{number}.diary"

    def _states(self, number: int) -> list[str]:
        diary = self._diary(number)
        lines = diary.read_text().split("\n")[:-1] if diary.exists() else []
        return [line.split()[1] for line in lines]

    def _wait_until(self, number: int, state: str) -> None:
        """Until a worker has committed more than one round of aborts, and is in a state."""
        wait_until(f"the worker commits, then {state}", partial(self._is_in, number, state), PATIENCE_S, each_s=0.002)

    def _is_in(self, number: int, state: str) -> bool:
        worker, states = self._workers[number], self._states(number)
        assert worker.is_running, f"the worker ended: {worker.log_tail()}"
        return len(states) > 0 and states[-1] == state and states.count("committed") > COMMITS_MIN

    def _is_done(self, worker: Member) -> bool:
        """Whether the group has committed everything that is in the input."""
        assert worker.is_running, f"the worker ended: {worker.log_tail()}"
        partitions = [TopicPartition(self._input, partition) for partition in range(PARTITIONS)]
        committed = {each.partition: each.offset for each in self._watcher.committed(partitions, timeout=10)}
        ends = {each.partition: self._watcher.get_watermark_offsets(each, timeout=10)[1] for each in partitions}
        return committed == ends

    def _mark_end(self) -> None:
        """A plain message at the end of each partition, which shows up once no transaction before it is open."""
        producer = Producer({"bootstrap.servers": self._broker.bootstrap})
        for partition in range(PARTITIONS):
            producer.produce(self._output, b"end", partition=partition)
        assert producer.flush(30) == 0, "the end could not be written"
