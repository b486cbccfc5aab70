"""The board of pipelines as a state machine: reports, wishes to stop, and runs that were replaced."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import CorruptRecords, PipelineNotFound, PipelineReplaced
from penstock.features.pipelines.board import AskToStop, Board, Forget, Tell
from penstock.features.pipelines.records import PipelineChange, Report, RunState, SinkFigures, from_record, to_record
from penstock.records import Record


def report(state: RunState, run: str = "a", name: str = "p") -> Report:
    return Report(name=name, run=run, state=state, file="p.yaml", master="local[2]", host="h", started_ms=5)


def ask(board: Board, request: Any, now_ms: int = 10) -> Any:
    """Ask, and have what is decided written and applied, as a shard does."""
    answers: list[Any] = []
    outcome = board.handle(request, now_ms, answers.append)
    for change in outcome.changes:
        record = to_record(change, 0, now_ms)
        board.apply(from_record(record), now_ms)
    for reply, answer in outcome.replies:
        reply(answer)
    (answer,) = answers
    return answer


def test_the_last_report_is_kept_with_the_time_that_it_came() -> None:
    board = Board()
    ask(board, Tell(report(RunState.STARTING)), 10)
    ask(board, Tell(report(RunState.RUNNING)), 20)
    assert board.find("p").state is RunState.RUNNING
    assert board.find("p").reported_ms == 20
    assert board.find("p").ended_ms is None
    ask(board, Tell(report(RunState.FAILED)), 30)
    assert board.find("p").ended_ms == 30


def test_a_run_is_told_that_somebody_wants_it_to_stop() -> None:
    board = Board()
    ask(board, Tell(report(RunState.STARTING)))
    assert not ask(board, Tell(report(RunState.RUNNING))).stop
    assert ask(board, AskToStop("p")).stop
    assert ask(board, Tell(report(RunState.RUNNING))).stop
    assert not ask(board, Tell(report(RunState.STARTING, run="b"))).stop, "that was asked of another run"


def test_a_run_that_was_replaced_hears_so() -> None:
    board = Board()
    ask(board, Tell(report(RunState.STARTING, run="a")))
    ask(board, Tell(report(RunState.STARTING, run="b")))
    with pytest.raises(PipelineReplaced, match="run b"):
        ask(board, Tell(report(RunState.RUNNING, run="a")))
    assert board.find("p").run == "b"


def test_what_is_over_is_not_asked_to_stop_and_what_never_was_is_not_found() -> None:
    board = Board()
    ask(board, Tell(report(RunState.FINISHED)))
    assert not ask(board, AskToStop("p")).stop
    ask(board, Forget("p"))
    assert board.is_forgettable
    for request in (AskToStop("p"), Forget("p")):
        with pytest.raises(PipelineNotFound):
            ask(board, request)


def test_a_report_comes_back_from_its_record_as_it_was() -> None:
    whole = Report(
        name="p",
        run="r",
        state=RunState.RUNNING,
        file="f",
        master="m",
        host="h",
        started_ms=1,
        error="e",
        queries=[SinkFigures(name="q", batch=3, rows=4, rows_per_second=0.5, lag=7, unmet={"x": 1})],
        stop=True,
    )
    assert from_record(to_record(PipelineChange("p", whole), 3, 9)) == PipelineChange("p", whole)
    assert from_record(to_record(PipelineChange("p", None), 3, 9)) == PipelineChange("p", None)
    for value in (b"", b"\xc1", b"\x01"):
        with pytest.raises(CorruptRecords, match="Record 3 is not about a pipeline"):
            from_record(Record(3, 0, b"p", value, ()))
