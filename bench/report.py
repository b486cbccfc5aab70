"""The end of a run: the tables on the screen, the same as Markdown, and everything as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.goals import GOALS, Judged, Verdict, judge
from bench.session import Plan, Results
from bench.summary import best, ratio
from bench.workloads import Row

MARKS = {Verdict.PASS: "✓", Verdict.BEHIND: "✗ behind", Verdict.UNKNOWN: "–"}


@dataclass(frozen=True, slots=True)
class Grid:
    """A table before anyone decided how to draw it."""

    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]

    def as_markdown(self) -> str:
        rule = ["---"] + ["---:"] * (len(self.head) - 1)
        body = [self.head, rule, *self.lines]
        return f"## {self.title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in body) + "\n"

    def as_table(self) -> Table:
        table = Table(title=self.title, title_justify="left")
        for place, name in enumerate(self.head):
            table.add_column(name, justify="right" if place else "left", no_wrap=True)
        for line in self.lines:
            failed = any("behind" in cell for cell in line)
            table.add_row(*line, style="red" if failed else None)
        return table


class Report:
    """What the samples say, and where it goes."""

    def __init__(self, plan: Plan, results: Results, facts: dict[str, object]) -> None:
        self._plan, self._results, self._facts = plan, results, facts
        self.figures = results.figures()
        self.limits = results.limit_figures()
        self.judged = [judge(goal, self.figures, self.limits) for goal in GOALS]

    def grids(self) -> list[Grid]:
        found = [self._ratios(), self._durability(), self._goals(), self._limits()]
        return [grid for grid in found if grid.lines]

    def print(self, console: Console) -> None:
        for grid in self.grids():
            console.print(grid.as_table())
        for sample in self._results.samples:
            if sample.note:
                console.print(f"! {sample.target} {sample.row}: {sample.note}", markup=False, highlight=False)

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        facts = "".join(f"- {name}: {value}\n" for name, value in self._facts.items())
        grids = "\n".join(grid.as_markdown() for grid in self.grids())
        (directory / "report.md").write_text(f"# Benchmark\n\n{facts}\n{grids}")
        (directory / "results.json").write_text(json.dumps(self.as_json(), indent=1) + "\n")

    def as_json(self) -> dict[str, object]:
        return {
            "machine": self._facts,
            "targets": {t.name: t.description for t in self._plan.targets},
            "limits": {"median": self.limits, "rounds": [asdict(one) for one in self._results.limits]},
            "rows": [self._row_json(row) for row in self._plan.rows()],
            "goals": [
                {
                    **asdict(one.goal),
                    "claim": one.goal.describe(),
                    "measured": one.measured,
                    "verdict": one.verdict.value,
                }
                for one in self.judged
            ],
            "samples": [asdict(sample) for sample in self._results.samples],
        }

    def _row_json(self, row: Row) -> dict[str, object]:
        of_row = [s for s in self._results.samples if s.row == row.id and s.value is not None and not s.note]
        names = sorted({s.target for s in of_row})
        bests = {
            name: best(
                [s.value for s in of_row if s.target == name and s.value is not None],
                higher_is_better=row.higher_is_better,
            )
            for name in names
        }
        return {**asdict(row), "median": self.figures.get(row.id, {}), "best": bests}

    def _ratios(self) -> Grid:
        lines = []
        for row in self._plan.rows():
            values = self.figures.get(row.id, {})
            ours, theirs = values.get("penstock"), values.get("kafka")
            limit = self.limits.get(row.limit) if row.limit else None
            if not values:
                continue
            lines.append(
                [
                    f"{row.id} ({row.unit})",
                    number(ours),
                    number(theirs),
                    times(ratio(ours, theirs)),
                    number(limit),
                    times(ratio(ours, limit)),
                    times(ratio(theirs, limit)),
                    self._mark(row.id),
                ]
            )
        head = ["row", "Penstock", "Kafka", "P ÷ K", "limit", "P ÷ limit", "K ÷ limit", "goal"]
        return Grid("Penstock next to Apache Kafka (medians)", head, lines)

    def _mark(self, row: str) -> str:
        verdicts = {one.verdict for one in self.judged if one.goal.row == row}
        for verdict in (Verdict.BEHIND, Verdict.UNKNOWN, Verdict.PASS):
            if verdict in verdicts:
                return MARKS[verdict]
        return ""

    def _durability(self) -> Grid:
        names = [t.name for t in self._plan.targets]
        rows = [row for work in self._plan.workloads if work.durability for row in work.rows()]
        lines = [
            [
                f"{row.id} ({row.unit})",
                *(number(self.figures.get(row.id, {}).get(name)) for name in names),
                number(self.limits.get(row.limit) if row.limit else None),
            ]
            for row in rows
            if row.id in self.figures
        ]
        return Grid("acks=all, with and without fsync before the ack", ["row", *names, "limit"], lines)

    def _goals(self) -> Grid:
        lines = [
            [one.goal.row, one.goal.describe(), number(one.measured), MARKS[one.verdict]]
            for one in self.judged
            if one.goal.row in {row.id for row in self._plan.rows()}
        ]
        return Grid("Goals", ["row", "claim", "measured", "verdict"], lines)

    def _limits(self) -> Grid:
        lines = [[name, number(value)] for name, value in self.limits.items()]
        return Grid("Limits of this machine in this run", ["limit", "median"], lines)

    def behind(self) -> list[Judged]:
        return [one for one in self.judged if one.verdict is Verdict.BEHIND]


def number(value: float | None) -> str:
    """Three significant digits or whole numbers: more would pretend to a precision that a shared machine lacks."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"
