"""Stories in text files: each line an event, and under it, indented, what comes of it.

A line of ``===`` begins a new story, ``#`` a comment. Expected text is written by running the tests with
PENSTOCK_REWRITE=1, and then read by a person.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

INDENT = "    "


class Transcript(Protocol):
    """Plays a story line by line."""

    def play(self, line: str) -> Iterable[str]:
        """What comes of an event."""


def stories_beside(test: str) -> list[Path]:
    return sorted(Path(test).with_name("scenarios").glob("*.txt"))


def played(text: str, begin: Callable[[], Transcript]) -> str:
    """The scenario with what really came out."""
    transcript = begin()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        if line.startswith("==="):
            transcript = begin()
        lines.append(line)
        if line and not line.startswith(("#", "===")):
            lines += [INDENT + came for came in transcript.play(line)]
    return "\n".join(lines) + "\n"


def check_story(path: Path, begin: Callable[[], Transcript]) -> None:
    """It goes as it is told."""
    told = path.read_text()
    found = played(told, begin)
    if os.environ.get("PENSTOCK_REWRITE"):
        path.write_text(found)
        return
    assert found == told


class Visited(dict[Any, Any]):
    """A row of a table that notes which of its cells are looked up."""

    def __init__(self, row: Mapping[Any, Any]) -> None:
        super().__init__(row)
        self.seen: set[Any] = set()

    def __getitem__(self, cell: Any) -> Any:
        self.seen.add(cell)
        return super().__getitem__(cell)


def untold_rules(
    table: Any, paths: Iterable[Path], begin: Callable[[], Transcript], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, str]]:
    """The cells of a table that no story comes to."""
    rows = {key: Visited(row) for key, row in table.items()}
    for key, row in rows.items():
        monkeypatch.setitem(table, key, row)
    for path in paths:
        played(path.read_text(), begin)
    return [(key.name, cell.name) for key, row in rows.items() for cell in set(row) - row.seen]
