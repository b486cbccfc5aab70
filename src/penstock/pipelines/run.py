"""One run of a pipeline: its queries are started, watched, reported, and stopped.

``report`` is called every few seconds and answers whether the run is to stop; where the report goes is the caller's
business. `QueryFigures` says how far a query is, from what Spark tells about its batches.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock import errors
from penstock.errors import PenstockError
from penstock.pipelines.definition import Definition, Trigger
from penstock.pipelines.flow import Flow, unmet_of
from penstock.pipelines.places import Checkpoint, beside
from penstock.pipelines.ready import READY
from penstock.pipelines.ready.kind import RunContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.25
_REPORT_S: Final = 2.0
_BATCH_PATIENCE_S: Final = 60.0  # a stop waits for so long for the batch that is on
_ERROR_CHARS_MAX: Final = 4_000
_STARTS_MAX: Final = 5
_TOO_SLOW: Final = "Python worker failed to connect back"
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE|\n|$)")  # an expectation
_OURS: Final = re.compile(r"^penstock\.errors\.(?:\w+\.)*(\w+): (.*)$", re.MULTILINE)  # source or sink
_OF_JAVA: Final = re.compile(r"^An error occurred while calling .*\n: (?:[\w.$]+: )*")  # py4j, before the cause
_TRACEBACK: Final = "Traceback (most recent call last):\n"
_IS_OF_CHECKPOINT: Final = re.compile(r"checkpoint|STATE_STORE|STATEFUL_OPERATOR|state schema", re.IGNORECASE)
_END: Final = re.compile(r"JVM stacktrace|=== Streaming Query ===|Driver stacktrace|\n\s*at ")


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run as it is now; states are those of `penstock.features.pipelines.records.RunState`."""

    state: str
    figures: list[QueryFigures]
    error: str | None = None
    code: str = ""  # of a `PenstockError`, if it failed for one
    trace: str = ""  # of what it failed for


class PipelineRun:
    """A pipeline while it runs."""

    def __init__(
        self,
        definition: Definition,
        spark: SparkSession,
        *,
        trigger: Trigger | None = None,
        checkpoint: str | None = None,
        is_restart: bool = False,
        report: Callable[[dict[str, Any]], bool] = lambda _: False,
        watch: Callable[[RunStatus], None] = lambda _: None,
        tell: Callable[[str], None] = log.info,
    ) -> None:
        self.id = uuid.uuid4().hex[:12]
        self._definition = definition
        self._spark = spark
        self._trigger = trigger or definition.trigger
        self._checkpoint = Checkpoint(checkpoint or checkpoint_of(definition), spark)
        self._is_restart = is_restart
        self._report, self._watch, self._tell = report, watch, tell
        self._started_at = datetime.now(UTC)
        self._stopping = threading.Event()
        self._queries: dict[str, StreamingQuery] = {}
        self._figures: dict[str, QueryFigures] = {}
        self._reported_at = 0.0

    def stop(self) -> None:
        """End the run after the batches that are on; may be called from a signal handler."""
        self._stopping.set()

    def go(self) -> RunStatus:
        """Run to the end; the outcome, with an error in words where it failed."""
        self._say(RunStatus("starting", []), is_due=True)
        status = self._attempt()
        for _ in range(_STARTS_MAX - 1):
            if status.error is None or _TOO_SLOW not in status.error or self._stopping.is_set():
                break
            # Spark gives a process ten seconds to start, which is not a setting. What was done is in the checkpoint.
            self._tell("A Python worker of Spark did not start in time; trying again.")
            status = self._attempt()
        self._say(status, is_due=True)
        return status

    def _attempt(self) -> RunStatus:
        try:
            self._begin()
            return self._watch_queries()
        except Exception as error:  # ours, or whatever a step does, or Spark
            return self._failed(error)
        finally:
            self._end_queries()

    def _failed(self, error: Exception) -> RunStatus:
        """The outcome for an error; where it is about the checkpoint, with what to do about that."""
        words, code = (error.message, error.code) if isinstance(error, PenstockError) else _words_of(error)
        if _IS_OF_CHECKPOINT.search(words):
            words += (
                f" The checkpoint is {self._checkpoint.place}. To forget it and begin anew, run the pipeline with "
                "--restart: what was written before stays, and rows may be written again."
            )
        return RunStatus("failed", self._all(), words, code, "".join(traceback.format_exception(error)))

    def _begin(self) -> None:
        definition = self._definition
        if self._is_restart:
            self._is_restart = False  # once, however often it is tried
            if self._checkpoint.forget():
                self._tell(f"The checkpoint {self._checkpoint.place} is forgotten; the pipeline begins anew.")
        if definition.uses:
            ready = READY[definition.uses]
            around = RunContext(self._spark, definition, self._checkpoint.place, self._trigger, self._tell)
            queries = ready.start(ready.check(definition), around)
        else:
            flow = Flow(definition, self._spark)
            if flow.begins and hasattr(self._spark, "sparkContext") and self._checkpoint.is_new:
                names = ", ".join(flow.begins)
                self._tell(f"First run: {names} from the earliest message on (startingOffsets: latest: only new ones).")
            queries = flow.start(self._checkpoint.place, self._trigger)
        for query in queries:
            name = query.name or str(query.id)
            self._queries[name] = query
            self._figures.setdefault(name, QueryFigures(name))

    def _watch_queries(self) -> RunStatus:
        while True:
            is_any_active = any(query.isActive for query in self._queries.values())
            self._take_progress()
            for query in self._queries.values():
                error = query.exception()
                if error is not None:
                    return self._failed(error)
            if not is_any_active:
                return RunStatus("finished", self._all())
            if self._stopping.is_set():
                self._await_batches()
                self._take_progress()
                return RunStatus("stopped", self._all())
            self._say(RunStatus("running", self._all()))
            self._stopping.wait(_LOOK_S)

    def _take_progress(self) -> None:
        for name, query in self._queries.items():
            figures = self._figures[name]
            last = query.lastProgress
            if last is None:
                continue
            # All that Spark remembers is much to read every time, and needed only where a batch was missed.
            for progress in [last] if last.batchId <= figures.batch + 1 else query.recentProgress:
                figures.note(progress)

    def _await_batches(self) -> None:
        deadline = time.monotonic() + _BATCH_PATIENCE_S
        while time.monotonic() < deadline:
            if not any(query.isActive and query.status["isTriggerActive"] for query in self._queries.values()):
                return
            time.sleep(_LOOK_S / 5)

    def _end_queries(self) -> None:
        for query in self._queries.values():
            try:
                query.stop()
            except Exception as error:  # it may have ended by itself, or Spark may be gone
                log.debug("Query %s did not stop: %s", query.name, error)

    def _all(self) -> list[QueryFigures]:
        return list(self._figures.values())

    def _say(self, status: RunStatus, *, is_due: bool = False) -> None:
        self._watch(status)
        now = time.monotonic()
        if not is_due and now - self._reported_at < _REPORT_S:
            return
        self._reported_at = now
        is_stop_wanted = self._report(
            {
                "run": self.id,
                "state": status.state,
                "started_at": self._started_at.isoformat(),
                "file": self._definition.file,
                "master": str(self._spark.conf.get("spark.master", "")),
                "host": socket.gethostname(),
                "error": status.error,
                "queries": [figures.view() for figures in status.figures],
            }
        )
        if is_stop_wanted:
            self.stop()


def checkpoint_of(definition: Definition) -> str:
    """Where a pipeline remembers how far it is: beside its file, unless it says otherwise."""
    if definition.checkpoint:
        return beside(definition, definition.checkpoint)
    directory = Path(definition.file or ".").resolve().parent
    earlier = directory / ".penstock" / "checkpoints" / definition.name  # among the data of `penstock dev`
    return str(earlier if earlier.exists() else directory / ".penstock-checkpoints" / definition.name)


def _words_of(error: BaseException) -> tuple[str, str]:
    """What went wrong in one line, without plans and stacks, and the code of our error if it is one of those."""
    words = str(error)
    raised = _RAISED.findall(words)
    if raised:
        return str(raised[-1]).strip()[:_ERROR_CHARS_MAX], ""
    ours = _OURS.findall(words)
    if ours:
        name, message = ours[-1]
        return str(message).strip()[:_ERROR_CHARS_MAX], str(getattr(getattr(errors, name, None), "code", ""))
    if _TRACEBACK in words:  # of a step in Python: its last line is the error
        lines = words.rsplit(_TRACEBACK, 1)[1].splitlines()
        last = next((line for line in lines if line and not line.startswith((" ", "\t"))), "")
        if last:
            return last.strip()[:_ERROR_CHARS_MAX], ""
    told = _END.split(_OF_JAVA.sub("", words), maxsplit=1)[0]
    first = next((line.strip() for line in told.splitlines() if line.strip()), "")
    return first[:_ERROR_CHARS_MAX] or type(error).__name__, ""


@dataclass(slots=True)
class QueryFigures:
    """Counts are of this run; lag is of the last batch."""

    name: str
    batch: int = -1
    rows: int = 0
    rows_per_second: float = 0.0
    batch_ms: int = 0
    lag: int | None = None
    unmet: dict[str, int] = field(default_factory=dict)

    def note(self, progress: Any) -> None:
        """Take over what Spark says. It also speaks when nothing is to be done, under the number of the next batch."""
        lags = [lag_between(source.endOffset, source.latestOffset) for source in progress.sources]
        known = [lag for lag in lags if lag is not None]
        if known:
            self.lag = sum(known)
        if "addBatch" not in progress.durationMs:
            self.batch = max(self.batch, progress.batchId - 1)
            self.rows_per_second = 0.0
            return
        if progress.batchId <= self.batch:
            return
        self.batch = progress.batchId
        self.rows += progress.numInputRows
        rate = progress.processedRowsPerSecond
        self.rows_per_second = rate if rate is not None and isfinite(rate) else 0.0
        self.batch_ms = int(progress.durationMs.get("triggerExecution", 0))
        for name, count in unmet_of(progress.observedMetrics).items():
            self.unmet[name] = self.unmet.get(name, 0) + count

    def view(self) -> dict[str, Any]:
        """As it is reported over REST."""
        return {
            "name": self.name,
            "batch": self.batch,
            "rows": self.rows,
            "rows_per_second": round(self.rows_per_second, 1),
            "batch_ms": self.batch_ms,
            "lag": self.lag,
            "unmet": self.unmet,
        }


def lag_between(end: Any, latest: Any) -> int | None:
    """How many messages were there when a batch was planned and are behind its end; None if that is not known.

    Both are positions as `penstock.spark` writes them, in JSON; other sources have other forms.
    """
    try:
        read, there = msgspec.json.decode(str(end)), msgspec.json.decode(str(latest))
        offsets: list[tuple[int, int]] = [
            (read["topics"].get(name, {}).get("offsets", {}).get(index, 0), last)
            for name, topic in there["topics"].items()
            for index, last in topic["offsets"].items()
        ]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return None
    return sum(max(last - first, 0) for first, last in offsets)
