"""The run as a whole: rounds of sessions, and the samples they leave.

A session is one target started on an empty directory, warmed up, put through its workloads and stopped; never two at
once. Rounds alternate the order of the targets and measure the machine's limits anew, because a shared machine
drifts. A workload that fails leaves a note in place of a figure, and the run goes on.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.ballast import Ballast
from bench.client import LoadError, LoadGenerator, Numbers, Topics
from bench.limits import Limits, measure_limits
from bench.process import BrokerError, MemoryWatch
from bench.progress import Progress
from bench.runner import Bounds, Runner
from bench.summary import median
from bench.targets import Node, Target
from bench.workloads import NODE_ROWS, Row, Workload

IDLE_AFTER_S = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one row, or why there is none."""

    row: str
    target: str
    round: int
    value: float | None
    detail: Numbers = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    targets: Sequence[Target]
    workloads: Sequence[Workload]
    rounds: int
    bounds: Bounds
    directory: Path
    limit_repeats: int = 1

    def workloads_of(self, target: Target) -> list[Workload]:
        is_variant = "+" in target.name
        fitting = [work for work in self.workloads if work.nodes == target.nodes]
        return [work for work in fitting if work.durability or not is_variant]

    def order(self, round_number: int) -> list[Target]:
        """The targets of a round, forwards and backwards in turn, without those that have nothing to do."""
        wanted = [t for t in self.targets if self.workloads_of(t) or ("+" not in t.name and t.nodes == 1)]
        return wanted if round_number % 2 else wanted[::-1]

    def rows(self) -> list[Row]:
        return [*NODE_ROWS, *(row for work in self.workloads for row in work.rows())]

    def steps(self) -> int:
        return self.rounds * (1 + sum(len(self.workloads_of(t)) + 2 for t in self.order(1)))


@dataclass
class Results:
    """Everything measured so far."""

    samples: list[Sample] = field(default_factory=list)
    limits: list[Limits] = field(default_factory=list)

    def figures(self) -> dict[str, dict[str, float]]:
        """Row to target to the median over the rounds. A run with lost or unacknowledged records counts for nothing."""
        values: dict[tuple[str, str], list[float]] = defaultdict(list)
        for sample in self.samples:
            if sample.value is not None and not sample.note:
                values[sample.row, sample.target].append(sample.value)
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for (row, target), several in values.items():
            found[row][target] = median(several)
        return dict(found)

    def limit_figures(self) -> dict[str, float]:
        if not self.limits:
            return {}
        return {name: median([asdict(one)[name] for one in self.limits]) for name in asdict(self.limits[0])}


def run_plan(plan: Plan, generator: LoadGenerator, ballast: Ballast, progress: Progress) -> Results:
    results = Results()
    shutil.rmtree(plan.directory, ignore_errors=True)
    plan.directory.mkdir(parents=True)
    try:
        for round_number in range(1, plan.rounds + 1):
            progress.step(f"round {round_number}/{plan.rounds}: limits of the machine")
            results.limits.append(measure_limits(plan.directory, ballast, repeats=plan.limit_repeats))
            for target in plan.order(round_number):
                Session(plan, target, round_number, generator, ballast, progress, results).run()
    except KeyboardInterrupt:
        progress.say("interrupted: reporting what there is")
    finally:
        ballast.release()
        shutil.rmtree(plan.directory, ignore_errors=True)
    return results


@dataclass
class Session:
    """One target, from start to stop, in one round."""

    plan: Plan
    target: Target
    round: int
    generator: LoadGenerator
    ballast: Ballast
    progress: Progress
    results: Results

    def run(self) -> None:
        works = self.plan.workloads_of(self.target)
        try:
            self.progress.step(f"{self._title}: start")
            with self._node() as node:
                time.sleep(IDLE_AFTER_S)
                if self.target.nodes == 1:
                    idle = node.process.memory()
                    self._record("start-to-ready", node.ready_s)
                    self._record("memory-idle", idle.rss_mb, {"anon_mb": idle.anon_mb})
                self._load(node, works)
        except (BrokerError, LoadError, OSError) as error:
            self.progress.say(f"{self._title}: session ended: {error}")
            self.results.samples.append(Sample("session", self.target.name, self.round, None, note=str(error)))

    @property
    def _title(self) -> str:
        return self.target.name if self.target.nodes == 1 else f"{self.target.name} × {self.target.nodes}"

    @contextlib.contextmanager
    def _node(self) -> Iterator[Node]:
        directory = self.plan.directory / f"{self.target.name}-{self.round}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        node = self.target.start(directory)
        try:
            yield node
        finally:
            node.process.stop()
            shutil.rmtree(directory, ignore_errors=True)

    def _load(self, node: Node, works: Sequence[Workload]) -> None:
        runner = Runner(node, self.generator, Topics(node), self.ballast, self.plan.bounds)
        with MemoryWatch(node.process) as watch:
            self.progress.step(f"{self._title}: warm-up")
            runner.warm_up()
            for work in works:
                self.progress.step(f"{self._title}: {work.id}")
                self._one(work, lambda work=work: runner.run(work))  # type: ignore[misc]
                if not node.process.is_running:
                    raise BrokerError(f"died during {work.id}\n{node.process.log_tail()}")
        if self.target.nodes == 1:
            self._record("memory-under-load", watch.peak.rss_mb, {"anon_mb": watch.peak.anon_mb})

    def _one(self, work: Workload, run: Callable[[], dict[str, tuple[float, Numbers]]]) -> None:
        try:
            for row, (value, detail) in run().items():
                self._record(row, value, detail)
        except LoadError as error:
            self.progress.say(f"{self.target.name} {work.id}: {error}")
            for missing in work.rows():
                self.results.samples.append(Sample(missing.id, self.target.name, self.round, None, note=str(error)))

    def _record(self, row: str, value: float, detail: Numbers | None = None) -> None:
        note = str((detail or {}).get("note", ""))
        self.results.samples.append(Sample(row, self.target.name, self.round, value, detail or {}, note))
        units = {r.id: r.unit for r in self.plan.rows()}
        self.progress.say(f"{self.target.name:18} {row:34} {value:12,.2f} {units.get(row, '')} {note}")
