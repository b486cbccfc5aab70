"""What becomes of the generator's numbers: rows, notes, and the overhead of transactions."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bench.ballast import Ballast
from bench.client import LoadError, Numbers
from bench.runner import Bounds, Runner
from bench.workloads import all_workloads

WORKLOADS = {work.id: work for work in all_workloads()}
PLAIN: Numbers = {"mb_per_s": 200.0, "messages": 400_000}
COMMITTED: Numbers = {"mb_per_s": 150.0, "messages": 300_000, "p50_ms": 5.0, "p99_ms": 9.0}
READ: Numbers = {"mb_per_s": 500.0, "messages": 600_000}


@dataclass
class ScriptedGenerator:
    """Gives prepared numbers in turn, and remembers what it was asked for."""

    answers: list[dict[str, Any]]
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def run(self, mode: str, node: object, limit_s: float, **options: object) -> dict[str, Any]:
        self.asked.append((mode, options))
        return dict(self.answers.pop(0))


class CountedTopics:
    def __init__(self) -> None:
        self.existing: set[str] = set()

    def create(self, name: str, partitions: int) -> None:
        self.existing.add(name)

    def delete(self, name: str) -> None:
        self.existing.remove(name)


class IdleNode:
    """A broker that uses no CPU."""

    kafka_port, data_dir, ready_s, replicas = 0, Path(), 0.0, 1

    @property
    def process(self) -> "IdleNode":
        return self

    def cpu_seconds(self) -> float:
        return 0.0


def run(work_id: str, *answers: dict[str, Any]) -> tuple[dict[str, tuple[float, Numbers]], ScriptedGenerator]:
    generator, topics = ScriptedGenerator(list(answers)), CountedTopics()
    bounds = Bounds(seconds=2, latency_s=2, steady_s=1)
    runner = Runner(IdleNode(), generator, topics, Ballast(0), bounds)  # type: ignore[arg-type]
    rows = runner.run(WORKLOADS[work_id])
    assert topics.existing == set(), "a workload leaves no topic behind"
    assert set(rows) == {row.id for row in WORKLOADS[work_id].rows()}
    return rows, generator


def test_overhead_is_what_transactions_lose_of_the_plain_rate() -> None:
    rows, generator = run("transactions-1k", PLAIN, PLAIN, COMMITTED, COMMITTED, READ)
    assert rows["transactions-1k-overhead"][0] == pytest.approx(25)
    assert (rows["transactions-1k"][0], rows["transactions-1k-plain"][0]) == (150, 200)
    assert rows["transactions-1k-commit-p99"][0] == 9
    mode, options = generator.asked[-1]
    assert (mode, options["count"]) == ("consume", 600_000), "everything committed is read back, the warm-up too"


def test_plain_and_transactional_runs_have_the_same_shape() -> None:
    _, generator = run("transactions-1k", PLAIN, PLAIN, COMMITTED, COMMITTED, READ)
    plain, transactional = generator.asked[1][1], generator.asked[3][1]
    assert plain.pop("plain") == 1
    assert plain.pop("topic") != transactional.pop("topic")
    assert plain == transactional


def test_a_record_that_cannot_be_read_back_voids_every_figure_of_transactions() -> None:
    rows, _ = run("transactions-1k", PLAIN, PLAIN, COMMITTED, COMMITTED, {**READ, "note": "3 errors"})
    noted = {row for row, (_, detail) in rows.items() if "note" in detail}
    assert noted == set(rows) - {"transactions-1k-plain"}


def test_a_broker_that_commits_nothing_gives_no_figure() -> None:
    nothing = {"mb_per_s": 0.0, "messages": 0, "first_error": "not supported"}
    with pytest.raises(LoadError, match="not supported"):
        run("transactions-1k", PLAIN, PLAIN, nothing, nothing)


def test_commits_are_counted_by_the_second() -> None:
    rows, generator = run("offset-commits-50c", {"msgs_per_s": 12_000.0})
    assert rows["offset-commits-50c"][0] == 12_000
    assert generator.asked[0][1]["connections"] == 50
