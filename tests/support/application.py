"""An application that transforms one topic into another in transactions, kept running, and what comes of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from tests.support.node import Node
from tests.support.nursery import die_with_parent

ROOT = Path(__file__).parents[2]


class Application:
    """The application, started again whenever it has ended."""

    def __init__(self, directory: Path, node: Node, source: str, sink: str, **manner: object) -> None:
        """``manner`` is what `tests.support.transformer` takes from its environment."""
        self._diary = directory / "diary"
        self._log = directory / "app.log"
        words = [node.bootstrap, f"group-of-{source}", source, sink, str(self._diary)]
        self._command = [sys.executable, "-m", "tests.support.transformer", *words]
        self._child: subprocess.Popen[bytes] | None = None
        self._environment = {**os.environ, **{name.upper(): str(value) for name, value in manner.items()}}
        self.starts = 0

    def keep_running(self) -> None:
        if self._child is None or self._child.poll() is not None:
            self.starts += 1
            with self._log.open("ab") as out:
                self._child = subprocess.Popen(
                    self._command,
                    cwd=ROOT,
                    env=self._environment,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    preexec_fn=die_with_parent,
                )

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def count(self, word: str) -> int:
        """How many transactions it knows to have ended so."""
        return self._diary.read_text().count(word) if self._diary.exists() else 0

    def wait_for_commit(self, patience_s: float = 60.0) -> None:
        before, deadline = self.count("committed"), time.monotonic() + patience_s
        while self.count("committed") == before:
            self.keep_running()
            assert time.monotonic() < deadline, f"the application gets nowhere\n{self.log_tail()}"
            time.sleep(0.01)

    def log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])


def read_results(
    node: Node, sink: str, partitions: int, wanted: int, app: Application, patience_s: float = 60.0
) -> list[bytes]:
    """What a reader of committed messages sees, once it has seen as many as are wanted, and no more for a second."""
    config = {
        "bootstrap.servers": node.bootstrap,
        "group.id": "checker",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "log_level": 2,
    }
    consumer = Consumer(config)
    values: list[bytes] = []
    try:
        consumer.assign([TopicPartition(sink, at, 0) for at in range(partitions)])
        quiet_since = time.monotonic()
        while len(values) < wanted or time.monotonic() - quiet_since < 1.0:
            is_stuck = time.monotonic() > quiet_since + patience_s
            assert not is_stuck, f"{len(values)} of {wanted} results, and no more to come\n{app.log_tail()}"
            app.keep_running()
            found = [each.value() for each in consumer.consume(500, 0.1) if not each.error()]
            if found:
                values += found
                quiet_since = time.monotonic()
        return values
    finally:
        consumer.close()
