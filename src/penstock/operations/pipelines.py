"""Serves pipelines: runners report, people look, and ask a run to stop."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock.api import limits
from penstock.api.pipelines import (
    ForgetPipeline,
    GetPipeline,
    ListPipelines,
    PipelineList,
    PipelineState,
    PipelineView,
    QueryReport,
    ReportPipeline,
    StopPipeline,
)
from penstock.errors import InvalidRequest
from penstock.features.pipelines.records import Report, RunState, SinkFigures
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import serves

LOST_MS: Final = 30_000  # without a report: its runner is gone

_NAME: Final = re.compile(limits.PIPELINE_PATTERN)


@serves(ListPipelines)
async def list_pipelines(services: Services, _request: ListPipelines, _caller: Caller) -> PipelineList:
    now_ms = services.clock.now_ms()
    return PipelineList(pipelines=[_view(report, now_ms) for report in await services.pipelines.reports()])


@serves(GetPipeline)
async def get_pipeline(services: Services, request: GetPipeline, _caller: Caller) -> PipelineView:
    return _view(await services.pipelines.find(_checked(request.pipeline)), services.clock.now_ms())


@serves(ReportPipeline)
async def report_pipeline(services: Services, request: ReportPipeline, _caller: Caller) -> PipelineView:
    report = Report(
        name=_checked(request.pipeline),
        run=request.run,
        state=RunState(request.state),
        file=request.file,
        master=request.master,
        host=request.host,
        started_ms=int(request.started_at.timestamp() * 1000),
        error=request.error,
        queries=[msgspec.convert(msgspec.to_builtins(each), SinkFigures) for each in request.queries],
    )
    return _view(await services.pipelines.tell(report), services.clock.now_ms())


@serves(StopPipeline)
async def stop_pipeline(services: Services, request: StopPipeline, _caller: Caller) -> PipelineView:
    return _view(await services.pipelines.stop_run(_checked(request.pipeline)), services.clock.now_ms())


@serves(ForgetPipeline)
async def forget_pipeline(services: Services, request: ForgetPipeline, _caller: Caller) -> None:
    await services.pipelines.forget(_checked(request.pipeline))


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} is no name of a pipeline: use letters, digits, - and _, a letter first.")
    return name


def state_of(report: Report, now_ms: int) -> PipelineState:
    is_lost = not report.state.is_over and now_ms - report.reported_ms > LOST_MS
    state: PipelineState = "lost" if is_lost else report.state.value
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
