"""Simulated histories, many at a time: worker processes that run seeds, hunt mutants, and say what came of it."""

from __future__ import annotations

import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from multiprocessing import get_context
from random import Random
from typing import Final

from sim.cluster.mutants import CLUSTER
from sim.cluster.queue_shape import QueueShape
from sim.cluster.schedule_shape import ScheduleShape
from sim.driver_mutants import DRIVER
from sim.driver_swarm import run_driver_seed
from sim.mutants import RAFT
from sim.planting import Catch, hunt
from sim.result import Result
from sim.swarm import run_raft_seed

KINDS: Final = ("raft", "quorum", "cluster")
SUBJECTS: Final = ("schedules", "queues", "lanes")
_SEED_MAX_S: Final = 600
_HUNT_MAX_S: Final = 900
_SIMULATION: Final = "sim"
MUTANTS: Final = {"raft": RAFT, "quorum": DRIVER, "cluster": CLUSTER}
_STORIES: Final = {
    "raft": f"{_SIMULATION}.stories:STORIES",
    "quorum": f"{_SIMULATION}.driver_stories:STORIES",
    "cluster": f"{_SIMULATION}.cluster.stories:STORIES",
}
_SWARMS: Final = {
    "raft": f"{_SIMULATION}.swarm:run_raft_seed",
    "quorum": f"{_SIMULATION}.driver_swarm:run_driver_seed",
    "cluster": f"{_SIMULATION}.cluster.seeds:run_cluster_seed",
}


@dataclass(slots=True)
class Summary:
    """What many histories came to."""

    seeds: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    events: int = 0
    operations: int = 0
    virtual_s: float = 0.0
    seconds: float = 0.0
    violations: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.seeds[result.kind] += 1
        self.faults.update(result.faults)
        self.counts.update(result.counts)
        self.events += result.events
        self.operations += result.operations
        self.virtual_s += result.duration_ms / 1000
        if result.violation is not None:
            self.violations.append(result)

    def to_json(self) -> dict[str, object]:
        return {
            "seeds": dict(self.seeds),
            "events": self.events,
            "operations": self.operations,
            "virtual_s": round(self.virtual_s, 1),
            "seconds": round(self.seconds, 1),
            "counts": dict(sorted(self.counts.items())),
            "faults": dict(self.faults.most_common()),
            "violations": [
                {"kind": bad.kind, "seed": bad.seed, "violation": bad.violation, "replay": replay_command(bad)}
                for bad in self.violations
            ],
        }


def is_about(what: str, seed: int) -> bool:
    """Whether the cluster of a seed has schedules, queues, or queues with lanes or fairness."""
    if what == "schedules":
        return ScheduleShape.drawn(Random(f"schedules {seed}")) is not None
    queue = QueueShape.of_seed(seed)
    return queue is not None and (what == "queues" or queue.has_shares)


def replay_command(result: Result) -> str:
    return f"./dev sim --kind {result.kind} --seed {result.seed}"


def run_seed(kind: str, seed: int, *, is_kept: bool = False) -> Result:
    """One history. One that never ends is a violation too."""
    try:
        with _time_limit(_SEED_MAX_S):
            if kind == "raft":
                return run_raft_seed(seed, is_kept=is_kept)
            if kind == "quorum":
                return run_driver_seed(seed, is_kept=is_kept)
            return _run_cluster_seed(seed, is_kept=is_kept)
    except TimeoutError:
        return Result(kind, seed, 0, 0, 0, {}, "", f"it did not end within {_SEED_MAX_S} s")


def _run_cluster_seed(seed: int, *, is_kept: bool) -> Result:
    from sim.cluster.seeds import run_cluster_seed  # a whole broker: only if it is wanted

    found = run_cluster_seed(seed, is_told=is_kept)
    return Result(
        kind="cluster",
        seed=seed,
        duration_ms=int(found.virtual_s * 1000),
        events=found.events,
        operations=found.operations,
        faults=found.faults,
        trace=found.trace,
        violation="; ".join(str(violation) for violation in found.violations) or None,
        history=found.lines,
        counts=found.counts,
    )


def stories_of(kind: str) -> dict[str, Callable[[], None]]:
    """The scripted histories of a kind, by name."""
    module, _, name = _STORIES[kind].partition(":")
    stories: dict[str, Callable[[], None]] = getattr(import_module(module), name)
    return stories


def hunt_mutant(kind: str, at: int, seeds: int, *, is_first_enough: bool) -> Catch:
    """Plant one of the known bugs and look for it. One whose text is no longer in the source is not caught."""
    mutant = MUTANTS[kind][at]
    try:
        with _time_limit(_HUNT_MAX_S):
            return hunt(mutant, range(seeds), _STORIES.get(kind), _SWARMS[kind], is_first_enough=is_first_enough)
    except LookupError as error:
        return Catch(mutant.name, None, None, 0, str(error))
    except TimeoutError:
        return Catch(mutant.name, None, None, 0, f"not found within {_HUNT_MAX_S} s")


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def expire(*_: object) -> None:
        raise TimeoutError(f"{seconds} s are over")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# -- processes ---------------------------------------------------------------------------------------------------------


def _run_share(share: Sequence[tuple[str, int]]) -> list[Result]:
    return [run_seed(kind, seed) for kind, seed in share]


def _begin_worker() -> None:
    logging.disable(logging.CRITICAL)  # nodes that complain of what is done to them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started us decides


class Workers:
    """A few processes that take work as they get free."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin_worker)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def seeds(self, work: Iterator[tuple[str, int]], share: int) -> Iterator[Result]:
        """Results as they come. No more is taken from ``work`` than is about to be done."""
        running: set[Future[list[Result]]] = set()
        while True:
            while len(running) < 2 * self._jobs and (chunk := list(islice(work, share))):
                running.add(self._pool.submit(_run_share, chunk))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()

    def mutants(self, kinds: Sequence[str], seeds: int, *, is_first_enough: bool) -> Iterator[Catch]:
        """Every known bug in turn."""
        futures = [
            self._pool.submit(hunt_mutant, kind, at, seeds, is_first_enough=is_first_enough)
            for kind in kinds
            for at in range(len(MUTANTS[kind]))
        ]
        for future in futures:
            yield future.result()
