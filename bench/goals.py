"""The speeds to reach, as claims that a run's figures prove or refute.

Each goal is one comparison of a Penstock figure: with Kafka's on the same row, with a limit of the machine, with
another Penstock row, or with a plain number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bench.summary import ratio


class Verdict(Enum):
    PASS = "pass"
    BEHIND = "behind"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True)
class Goal:
    """`row` compared with `against`: `kafka`, `limit:NAME`, `row:ID`, or `number`."""

    row: str
    against: str
    at_least: float | None = None
    at_most: float | None = None

    def describe(self) -> str:
        sign, bound = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        if self.against == "number":
            return f"{sign} {bound:g}"
        return f"{sign} {bound:g} × {self.against.rpartition(':')[2].removesuffix('_mb_per_s')}"


@dataclass(frozen=True, slots=True)
class Judged:
    goal: Goal
    measured: float | None
    verdict: Verdict


GOALS = [
    *(Goal(f"produce-1k-acks1-{p}p", "limit:page_cache_write_mb_per_s", at_least=0.7) for p in (1, 8)),
    *(Goal(f"produce-1k-acks1-{p}p", "kafka", at_least=1.3) for p in (1, 8)),
    *(Goal(f"consume-1k-{p}p", "kafka", at_least=1.2) for p in (1, 8)),
    *(Goal(f"produce-100b-acks1-{p}p", "kafka", at_least=1.0) for p in (1, 8, 100)),
    *(Goal(f"consume-100b-{p}p", "kafka", at_least=1.0) for p in (1, 8, 100)),
    *(Goal(f"produce-1k-acksall-{p}p", "limit:group_commit_mb_per_s", at_least=0.5) for p in (1, 8)),
    Goal("one-message-a-request", "number", at_least=50_000),
    Goal("latency-1k-acks1-p50", "kafka", at_most=1.0),
    Goal("latency-1k-acks1-p99", "kafka", at_most=1.0),
    Goal("start-to-ready", "number", at_most=1.0),
    Goal("memory-idle", "number", at_most=80),
    Goal("transactions-1k-overhead", "number", at_most=30),
    Goal("offset-commits-50c", "number", at_least=10_000),
    Goal("group-join-50-max", "number", at_most=1000),
    Goal("many-groups-100x10-rebalances", "number", at_most=0),
    Goal("three-nodes-produce-1k-acksall-8p", "kafka", at_least=1.0),
    Goal("three-nodes-idle-1000-partitions-cpu", "number", at_most=25),
    Goal("produce-1k-acks1-100p", "row:produce-1k-acks1-8p", at_least=0.8),
]

Figures = Mapping[str, Mapping[str, float]]
"""Row id to target name to figure."""


def judge(goal: Goal, figures: Figures, limits: Mapping[str, float]) -> Judged:
    ours = figures.get(goal.row, {}).get("penstock")
    kind, _, name = goal.against.partition(":")
    if kind == "number":
        measured = ours
    elif kind == "kafka":
        measured = ratio(ours, figures.get(goal.row, {}).get("kafka"))
    elif kind == "row":
        measured = ratio(ours, figures.get(name, {}).get("penstock"))
    else:
        measured = ratio(ours, limits.get(name))
    return Judged(goal, measured, _verdict(goal, measured))


def _verdict(goal: Goal, measured: float | None) -> Verdict:
    if measured is None:
        return Verdict.UNKNOWN
    reached = (goal.at_least is None or measured >= goal.at_least) and (
        goal.at_most is None or measured <= goal.at_most
    )
    return Verdict.PASS if reached else Verdict.BEHIND
