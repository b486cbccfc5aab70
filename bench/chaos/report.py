"""The report of a run: tables on the screen and as Markdown, everything as JSON, and the verdict."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from bench.chaos.checker import CHECKS
from bench.chaos.checker.anomaly import Anomaly
from bench.chaos.conductor import Happening, Trouble
from bench.chaos.figures import Figures, longest_silence
from bench.report import Grid

EXAMPLES = 8


@dataclass
class Report:
    """Everything that a run found out."""

    facts: dict[str, object]
    happenings: Sequence[Happening]
    troubles: Sequence[Trouble]
    figures: Figures
    anomalies: Sequence[Anomaly]
    began_at: float
    asked_until: float
    """When clients were asked to finish."""

    @property
    def is_good(self) -> bool:
        return not self.anomalies and not self.troubles

    def grids(self) -> list[Grid]:
        return [self._faults(), self._operations(), self._anomalies()]

    def _faults(self) -> Grid:
        by_kind: dict[str, list[Happening]] = defaultdict(list)
        for happening in self.happenings:
            by_kind[happening.kind].append(happening)
        lines = []
        for kind, several in sorted(by_kind.items()):
            spans = [(each.began_at, each.healed_at or each.began_at) for each in several]
            silences = [longest_silence(self.figures.acked_at, *span, self.asked_until) for span in spans]
            ends = [longest_silence(self.figures.ended_at, *span, self.asked_until) for span in spans]
            whole = [each.whole_at - each.healed_at for each in several if each.whole_at and each.healed_at]
            lines.append(
                [
                    kind,
                    str(len(several)),
                    f"{sum(end - begin for begin, end in spans):.0f}",
                    f"{max(silences):.1f}",
                    f"{max(ends):.1f}",
                    f"{max(whole):.1f}" if whole else "–",
                ]
            )
        head = ["fault", "times", "held (s)", "no ack for (s)", "no transaction for (s)", "whole after (s)"]
        return Grid("Faults", head, lines)

    def _operations(self) -> Grid:
        lines = [
            [name, *(f"{counts[outcome]:,}" for outcome in ("ok", "fail", "info", "withdrawn"))]
            for name, counts in sorted(self.figures.outcomes.items())
        ]
        return Grid("Operations of clients", ["operation", "ok", "failed", "unknown", "withdrawn"], lines)

    def _anomalies(self) -> Grid:
        counts = Counter(anomaly.kind for anomaly in self.anomalies)
        return Grid("Anomalies", ["kind", "count"], [[kind, str(counts[kind])] for kind in CHECKS])

    def verdict(self) -> str:
        if self.is_good:
            return f"No anomaly in {len(self.happenings)} faults."
        parts = []
        if self.anomalies:
            parts.append(f"{len(self.anomalies)} anomalies")
        if self.troubles:
            parts.append(f"{len(self.troubles)} times the cluster did not do what it should")
        return "FAILED: " + ", ".join(parts) + "."

    def stories(self) -> list[str]:
        """Some examples of each kind of anomaly, and every trouble."""
        shown: Counter[str] = Counter()
        lines = []
        for anomaly in self.anomalies:
            shown[anomaly.kind] += 1
            if shown[anomaly.kind] <= EXAMPLES:
                lines.append(str(anomaly))
        return lines + [f"trouble at {each.at - self.began_at:.1f} s: {each.text}" for each in self.troubles]

    def print(self, console: Console) -> None:
        for grid in self.grids():
            console.print(grid.as_table())
        for line in self.stories():
            console.print(f"! {line}", markup=False, highlight=False, soft_wrap=True)
        console.print(self.verdict(), style="green" if self.is_good else "red")

    def write(self, directory: Path) -> None:
        facts = "".join(f"- {name}: {value}\n" for name, value in self.facts.items())
        grids = "\n".join(grid.as_markdown() for grid in self.grids())
        stories = "".join(f"- {line}\n" for line in self.stories())
        log = "".join(
            f"| {each.began_at - self.began_at:.1f} | {each.kind} | {each.detail} |\n" for each in self.happenings
        )
        text = f"# Chaos\n\n{facts}\n**{self.verdict()}**\n\n{stories}\n{grids}\n"
        text += f"## What happened\n\n| at (s) | fault | |\n| ---: | --- | --- |\n{log}"
        (directory / "report.md").write_text(text)
        (directory / "report.json").write_text(json.dumps(self.as_json(), indent=1) + "\n")

    def as_json(self) -> dict[str, object]:
        return {
            "facts": self.facts,
            "is_good": self.is_good,
            "faults": [asdict(each) for each in self.happenings],
            "troubles": [asdict(each) for each in self.troubles],
            "operations": {name: dict(counts) for name, counts in self.figures.outcomes.items()},
            "anomalies": [asdict(each) for each in self.anomalies],
        }
