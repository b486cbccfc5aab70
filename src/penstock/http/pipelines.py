"""Pipelines over REST: runners report, people look, and ask a run to stop."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from penstock.broker.pipelines.records import QueryFigures, Report, RunState
from penstock.errors import InvalidRequest
from penstock.http import homes
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, no_content
from penstock.http.operation import Operation

LOST_MS: Final = 30_000  # without a report: its runner is gone

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_-]{0,99}"
_QUERIES_MAX: Final = 1_000

State = Literal["starting", "running", "finished", "stopped", "failed", "lost"]
Word = Annotated[str, Meta(max_length=1_000)]


class QueryReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the query of one sink is."""

    name: Word
    batch: Annotated[int, Meta(ge=-1, description="The last one that is done; -1 if none is.")] = -1
    rows: Annotated[int, Meta(ge=0, description="Of this run.")] = 0
    rows_per_second: Annotated[float, Meta(ge=0)] = 0.0
    batch_ms: Annotated[int, Meta(ge=0, description="How long the last batch took.")] = 0
    lag: Annotated[int | None, Meta(description="Messages that were there and not read, as of the last batch.")] = None
    unmet: Annotated[dict[str, int], Meta(description="Rows that did not meet an expectation, by its name.")] = {}


class RunReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of a pipeline tells how it is."""

    run: Annotated[str, Meta(min_length=1, max_length=64, description="Tells runs of one pipeline apart.")]
    state: Literal["starting", "running", "finished", "stopped", "failed"]
    started_at: datetime
    file: Word = ""
    master: Word = ""
    host: Word = ""
    error: Annotated[str, Meta(max_length=20_000)] | None = None
    queries: Annotated[list[QueryReport], Meta(max_length=_QUERIES_MAX)] = []


class PipelineView(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as its last run told of it. `lost`: it has not reported for half a minute, and did not end."""

    name: str
    run: str
    state: State
    stop_requested: bool
    file: str
    master: str
    host: str
    started_at: datetime
    reported_at: datetime
    ended_at: datetime | None
    error: str | None
    queries: list[QueryReport]


class PipelineList(msgspec.Struct, frozen=True, kw_only=True):
    pipelines: list[PipelineView]


def state_of(report: Report, now_ms: int) -> State:
    is_lost = not report.state.is_over and now_ms - report.reported_ms > LOST_MS
    state: State = "lost" if is_lost else report.state.value
    return state


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _view(report: Report, now_ms: int) -> PipelineView:
    return PipelineView(
        name=report.name,
        run=report.run,
        state=state_of(report, now_ms),
        stop_requested=report.stop,
        file=report.file,
        master=report.master,
        host=report.host,
        started_at=_moment(report.started_ms),
        reported_at=_moment(report.reported_ms),
        ended_at=None if report.ended_ms is None else _moment(report.ended_ms),
        error=report.error,
        queries=[msgspec.convert(msgspec.to_builtins(each), QueryReport) for each in report.queries],
    )


def _name_of(call: Call[Any, Any]) -> str:
    name: str = call.scope["path_params"]["pipeline"]
    if not re.fullmatch(_NAME, name):
        raise InvalidRequest(f"{name!r} is no name of a pipeline: use letters, digits, - and _, a letter first.")
    return name


async def list_pipelines(door: Door, _call: Call[None, None]) -> PipelineList:
    """List pipelines that have run, by name."""
    now_ms = door.broker.clock.now_ms()
    return PipelineList(pipelines=[_view(report, now_ms) for report in await door.broker.pipelines.reports()])


async def get_pipeline(door: Door, call: Call[None, None]) -> PipelineView:
    """Show how the last run of a pipeline is."""
    return _view(await door.broker.pipelines.find(_name_of(call)), door.broker.clock.now_ms())


async def report_pipeline(door: Door, call: Call[RunReport, None]) -> PipelineView:
    """Report how a run is; for runners. `stop_requested` in the answer asks it to end."""
    body = call.body
    report = Report(
        name=_name_of(call),
        run=body.run,
        state=RunState(body.state),
        file=body.file,
        master=body.master,
        host=body.host,
        started_ms=int(body.started_at.timestamp() * 1000),
        error=body.error,
        queries=[msgspec.convert(msgspec.to_builtins(each), QueryFigures) for each in body.queries],
    )
    return _view(await door.broker.pipelines.tell(report), door.broker.clock.now_ms())


async def stop_pipeline(door: Door, call: Call[None, None]) -> PipelineView:
    """Ask the run of a pipeline to stop; it does so after the batch that it is at."""
    return _view(await door.broker.pipelines.stop_run(_name_of(call)), door.broker.clock.now_ms())


async def forget_pipeline(door: Door, call: Call[None, None]) -> Reply:
    """Forget what a pipeline reported. Its checkpoint and what it wrote stay."""
    await door.broker.pipelines.forget(_name_of(call))
    return no_content()


_ONE: Final = "/v1/pipelines/{pipeline}"
_WRITE_ERRORS: Final = (400, 408, 409, 413, 422, 503, 507)

PIPELINE_OPERATIONS: Final = (
    Operation("GET", "/v1/pipelines", list_pipelines, "pipelines", PipelineList, errors=(503,), home=homes.BOARD),
    Operation("GET", _ONE, get_pipeline, "pipelines", PipelineView, errors=(404, 422, 503), home=homes.BOARD),
    Operation("PUT", _ONE, report_pipeline, "pipelines", PipelineView, errors=_WRITE_ERRORS, home=homes.NEW_BOARD),
    Operation(
        "POST",
        f"{_ONE}/stop",
        stop_pipeline,
        "pipelines",
        PipelineView,
        errors=(404, 422, 503, 507),
        home=homes.BOARD,
    ),
    Operation("DELETE", _ONE, forget_pipeline, "pipelines", None, 204, errors=(404, 422, 503, 507), home=homes.BOARD),
)
