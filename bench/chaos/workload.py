"""The workload: the client processes, kept alive, and how they are asked to finish."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.chaos.clients.client import EXIT_FATAL, EXIT_STUCK, FINISH_LIMIT_S
from bench.chaos.login import Login
from bench.chaos.machine import die_with_parent
from bench.targets import REPO

# Name to role. Producers finish first, then whoever has to read what they wrote.
PRODUCERS = {"producer1": "producer", "producer2": "producer"}
WRITERS = {"writer1": "writer", "writer2": "writer"}
DERIVING = {"transformer1": "transformer"}
READERS = {
    "reader1": "reader",
    "auditor1": "auditor",
    "classic1": "classic",
    "classic2": "classic",
    "modern1": "modern",
    "modern2": "modern",
}
EVERYBODY = PRODUCERS | WRITERS | DERIVING | READERS
EXPECTED_EXITS = (None, 0, EXIT_FATAL, EXIT_STUCK, -signal.SIGKILL)
_REST_S = 0.5


@dataclass
class Worker:
    """One client over its incarnations."""

    name: str
    role: str
    incarnation: int = -1
    child: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    exits: list[int] = field(default_factory=list)


class Workload:
    """All clients of a run."""

    def __init__(self, directory: Path, bootstrap: str, roles: Mapping[str, str], rate: int, login: Login) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._bootstrap = bootstrap
        self._environment = {**os.environ, **login.environment(directory), "CHAOS_RATE": str(rate)}
        self.workers = {name: Worker(name, role) for name, role in roles.items()}
        self._is_finishing: set[str] = set()

    @property
    def diaries(self) -> list[Path]:
        return sorted(self._directory.glob("*.diary"))

    @property
    def restarts(self) -> int:
        return sum(max(worker.incarnation, 0) for worker in self.workers.values())

    @property
    def crashes(self) -> list[str]:
        """Clients that ended in a way that no client should: by an exception that nobody expected."""
        ends = [
            (worker, code)
            for worker in self.workers.values()
            for code in [*worker.exits, *([] if worker.child is None else [worker.child.poll()])]
        ]
        return [f"{worker.name} ended with {code}" for worker, code in ends if code not in EXPECTED_EXITS]

    def tend(self) -> None:
        """Start whoever is not there: at the beginning, and after a client has given up."""
        for worker in self.workers.values():
            if worker.name in self._is_finishing:
                continue
            if worker.child is not None and worker.child.poll() is None:
                continue
            if time.monotonic() - worker.started_at < _REST_S:
                continue
            if worker.child is not None:
                worker.exits.append(worker.child.returncode)
            self._start(worker)

    def _start(self, worker: Worker) -> None:
        worker.incarnation += 1
        worker.started_at = time.monotonic()
        name = f"{worker.name}.{worker.incarnation}"
        words = [worker.role, worker.name, str(worker.incarnation), self._bootstrap]
        with (self._directory / f"{worker.name}.log").open("ab") as out:
            worker.child = subprocess.Popen(
                [sys.executable, "-m", "bench.chaos.clients", *words, str(self._directory / f"{name}.diary")],
                cwd=REPO,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._environment,
                preexec_fn=die_with_parent,
            )

    def finish(self, names: Mapping[str, str]) -> list[str]:
        """Ask some clients to finish and wait for them; who did not in time and was killed."""
        workers = [self.workers[name] for name in names if name in self.workers]
        for worker in workers:
            self._is_finishing.add(worker.name)
            if worker.child is not None and worker.child.poll() is None:
                worker.child.terminate()
        deadline = time.monotonic() + FINISH_LIMIT_S + 30
        killed: list[str] = []
        for worker in workers:
            if worker.child is None:
                continue
            try:
                worker.child.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                worker.child.kill()
                worker.child.wait()
                killed.append(worker.name)
        return killed

    def close(self) -> None:
        for worker in self.workers.values():
            if worker.child is not None and worker.child.poll() is None:
                worker.child.kill()
                worker.child.wait()
