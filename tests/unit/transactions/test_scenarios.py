"""The stories in ``scenarios/*.txt``, told line by line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.transactions.transcript import Transcript

from penstock.broker.transactions.states import VERDICTS, State

SCENARIOS = sorted(Path(__file__).with_name("scenarios").glob("*.txt"))
INDENT = "    "


def played(text: str) -> str:
    """The scenario with what really came out. A line of ``===`` begins a new story."""
    transcript = Transcript()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        if line.startswith("==="):
            transcript = Transcript()
        lines.append(line)
        if line and not line.startswith(("#", "===")):
            lines += [INDENT + came for came in transcript.play(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_goes_as_told(path: Path) -> None:
    told = path.read_text()
    found = played(told)
    if os.environ.get("PENSTOCK_REWRITE"):
        path.write_text(found)
        return
    assert found == told


class Visited(dict[State, Any]):
    """A row of a table that notes which of its cells are looked up."""

    def __init__(self, row: Mapping[State, Any]) -> None:
        super().__init__(row)
        self.seen: set[State] = set()

    def __getitem__(self, state: State) -> Any:
        self.seen.add(state)
        return super().__getitem__(state)


def test_every_rule_has_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {key: Visited(row) for key, row in VERDICTS.items()}
    for key, row in rows.items():
        monkeypatch.setitem(VERDICTS, key, row)  # type: ignore[arg-type]
    for path in SCENARIOS:
        played(path.read_text())
    untold = [(key.name, state.name) for key, row in rows.items() for state in set(row) - row.seen]
    assert not untold
