"""The stories in ``scenarios/*.txt``, told line by line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.joint.transcript import Transcript

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


def test_there_are_stories() -> None:
    assert len(SCENARIOS) >= 5
