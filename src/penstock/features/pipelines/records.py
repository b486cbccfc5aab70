"""What is written to ``__pipelines``: the last report of each pipeline, by its name.

Format: docs/formats/pipelines.md.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.errors import CorruptRecords
from penstock.records import Record


class RunState(Enum):
    """How it is with a run of a pipeline."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"  # all there was is done
    STOPPED = "stopped"  # somebody asked for it
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


class SinkFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How far the query of one sink is."""

    name: str
    batch: int = -1  # the last one that is done
    rows: int = 0  # of this run
    rows_per_second: float = 0.0
    batch_ms: int = 0  # how long the last one took
    lag: int | None = None  # messages that were there and not read yet, as of the last batch
    unmet: dict[str, int] = {}  # rows of this run that did not meet an expectation, by its name


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as its runner last told of it. ``stop``: somebody asked this run to end."""

    name: str
    run: str
    state: RunState
    file: str
    master: str
    host: str
    started_ms: int
    reported_ms: int = 0
    ended_ms: int | None = None
    error: str | None = None
    queries: list[SinkFigures] = []
    stop: bool = False


class PipelineChange(msgspec.Struct, frozen=True):
    """One report to persist and apply; without one the pipeline is forgotten."""

    name: str
    report: Report | None


_encode = msgspec.msgpack.Encoder().encode
_reports = msgspec.msgpack.Decoder(Report)


def to_record(change: PipelineChange, offset: int, at_ms: int) -> Record:
    value = None if change.report is None else _encode(change.report)
    return Record(offset, at_ms, change.name.encode(), value, ())


def from_record(record: Record) -> PipelineChange:
    """Read a record back; `CorruptRecords` if it is not about a pipeline."""
    try:
        name = (record.key or b"").decode()
        return PipelineChange(name, None if record.value is None else _reports.decode(record.value))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptRecords(f"Record {record.offset} is not about a pipeline: {error}") from error
