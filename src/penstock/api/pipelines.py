"""Pipelines: runners report, people look, and ask a run to stop."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock import errors
from penstock.api import limits
from penstock.api.limits import PipelineName
from penstock.api.operation import Action, Keeper, Repeat, Request, Resource, Where, operation

PipelineState = Literal["starting", "running", "finished", "stopped", "failed", "lost"]
Word = Annotated[str, Meta(max_length=limits.PIPELINE_WORD_CHARS_MAX)]

_BOARD: Final = Where(Keeper.PIPELINES)
_NEW_BOARD: Final = Where(Keeper.PIPELINES, makes=True)
_WRITE_ERRORS: Final = (errors.PipelineNotFound, errors.NotCoordinator, errors.DiskFull)


class QueryReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the query of one sink is."""

    name: Word
    batch: Annotated[int, Meta(ge=-1, description="The last one that is done; -1 if none is.")] = -1
    rows: Annotated[int, Meta(ge=0, description="Of this run.")] = 0
    rows_per_second: Annotated[float, Meta(ge=0)] = 0.0
    batch_ms: Annotated[int, Meta(ge=0, description="How long the last batch took.")] = 0
    lag: Annotated[int | None, Meta(description="Messages that were there and not read, as of the last batch.")] = None
    unmet: Annotated[dict[str, int], Meta(description="Rows that did not meet an expectation, by its name.")] = {}


class PipelineView(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as its last run told of it. `lost`: it has not reported for half a minute, and did not end."""

    name: str
    run: str
    state: PipelineState
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


@operation(
    "GET /v1/pipelines",
    tag="pipelines",
    needs=Action.DESCRIBE.of(Resource.PIPELINE),
    repeat=Repeat.SAFE,
    errors=(errors.NotCoordinator,),
    where=_BOARD,
)
class ListPipelines(Request[PipelineList], frozen=True, kw_only=True):
    """List pipelines that have run, by name."""


@operation(
    "GET /v1/pipelines/{pipeline}",
    tag="pipelines",
    needs=Action.DESCRIBE.of(Resource.PIPELINE, "pipeline"),
    repeat=Repeat.SAFE,
    errors=(errors.PipelineNotFound, errors.InvalidRequest, errors.NotCoordinator),
    where=_BOARD,
)
class GetPipeline(Request[PipelineView], frozen=True, kw_only=True):
    """Show how the last run of a pipeline is."""

    pipeline: PipelineName


@operation(
    "PUT /v1/pipelines/{pipeline}",
    tag="pipelines",
    needs=Action.WRITE.of(Resource.PIPELINE, "pipeline"),
    repeat=Repeat.SAME,
    errors=(errors.PipelineReplaced, errors.NotCoordinator, errors.DiskFull),
    where=_NEW_BOARD,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class ReportPipeline(Request[PipelineView], frozen=True, kw_only=True):
    """Report how a run is; for runners. `stop_requested` in the answer asks it to end."""

    pipeline: PipelineName
    run: Annotated[
        str, Meta(min_length=1, max_length=limits.RUN_CHARS_MAX, description="Tells runs of one pipeline apart.")
    ]
    state: Literal["starting", "running", "finished", "stopped", "failed"]
    started_at: datetime
    file: Word = ""
    master: Word = ""
    host: Word = ""
    error: Annotated[str, Meta(max_length=limits.PIPELINE_ERROR_CHARS_MAX)] | None = None
    queries: Annotated[list[QueryReport], Meta(max_length=limits.PIPELINE_QUERIES_MAX)] = []


@operation(
    "POST /v1/pipelines/{pipeline}/stop",
    tag="pipelines",
    needs=Action.ALTER.of(Resource.PIPELINE, "pipeline"),
    repeat=Repeat.SAME,
    errors=(*_WRITE_ERRORS, errors.InvalidRequest),
    where=_BOARD,
)
class StopPipeline(Request[PipelineView], frozen=True, kw_only=True):
    """Ask the run of a pipeline to stop; it does so after the batch that it is at."""

    pipeline: PipelineName


@operation(
    "DELETE /v1/pipelines/{pipeline}",
    tag="pipelines",
    needs=Action.DELETE.of(Resource.PIPELINE, "pipeline"),
    repeat=Repeat.SAME,
    errors=(*_WRITE_ERRORS, errors.InvalidRequest),
    where=_BOARD,
)
class ForgetPipeline(Request[None], frozen=True, kw_only=True):
    """Forget what a pipeline reported. Its checkpoint and what it wrote stay."""

    pipeline: PipelineName
