"""What a run shows while it goes on."""

from __future__ import annotations

import pytest

from penstock.cli.runs import _Live, display_of
from penstock.pipelines.definition import Definition
from penstock.pipelines.run import QueryFigures, RunStatus


def test_a_terminal_sees_every_query(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    figures = QueryFigures(
        "large", batch=3, rows=12345, rows_per_second=67.8, batch_ms=910, lag=42, unmet={"has id": 2}
    )
    with _Live(Definition(name="orders")) as live:
        live.show(RunStatus("running", [figures]))
        live.tell("[a line] to be told")
    shown = capsys.readouterr().err
    for text in ("orders: running", "large", "12,345", "68", "910 ms", "42", "has id: 2", "[a line] to be told"):
        assert text in shown


def test_elsewhere_only_what_is_told_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    with display_of(Definition(name="orders"), is_table=True) as lines:
        lines.show(RunStatus("running", []))  # type: ignore[attr-defined]
        lines.tell("a line")  # type: ignore[attr-defined]
    assert capsys.readouterr().err == "a line\n"
