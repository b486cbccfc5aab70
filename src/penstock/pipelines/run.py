"""One run of a pipeline: its queries are started, watched, told about, and stopped.

Where it tells of itself is up to whoever makes it: ``report`` is called every few seconds and answers whether somebody
wants the run to stop.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError
from penstock.pipelines.definition import Definition, Trigger
from penstock.pipelines.figures import Figures
from penstock.pipelines.flow import Flow
from penstock.pipelines.ready import READY
from penstock.pipelines.ready.kind import Surroundings

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
_OUR_WORDS: Final = (
    re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE|\n|$)"),  # an expectation
    re.compile(r"^penstock\.errors\.[\w.]+: (.*)$", re.MULTILINE),  # source or sink
)
_END: Final = re.compile(r"JVM stacktrace|=== Streaming Query ===|Driver stacktrace|\n\s*at ")


@dataclass(frozen=True, slots=True)
class Status:
    """A run as it is now; states are those of `penstock.broker.pipelines.records.RunState`."""

    state: str
    figures: list[Figures]
    error: str | None = None


class Run:
    """A pipeline while it runs."""

    def __init__(
        self,
        definition: Definition,
        spark: SparkSession,
        *,
        trigger: Trigger | None = None,
        checkpoint: Path | None = None,
        report: Callable[[dict[str, Any]], bool] = lambda _: False,
        watch: Callable[[Status], None] = lambda _: None,
        tell: Callable[[str], None] = log.info,
    ) -> None:
        self.id = uuid.uuid4().hex[:12]
        self._definition = definition
        self._spark = spark
        self._trigger = trigger or definition.trigger
        self._checkpoint = checkpoint or checkpoint_of(definition)
        self._report, self._watch, self._tell = report, watch, tell
        self._started_at = datetime.now(UTC)
        self._stopping = threading.Event()
        self._queries: dict[str, StreamingQuery] = {}
        self._figures: dict[str, Figures] = {}
        self._reported_at = 0.0

    def stop(self) -> None:
        """End the run after the batches that are on; may be called from a signal handler."""
        self._stopping.set()

    def go(self) -> Status:
        """Run to the end; the outcome, with an error in words where it failed."""
        self._say(Status("starting", []), is_due=True)
        status = self._attempt()
        for _ in range(_STARTS_MAX - 1):
            if status.error is None or _TOO_SLOW not in status.error or self._stopping.is_set():
                break
            # Spark gives a process ten seconds to start, which is not a setting. What was done is in the checkpoint.
            self._tell("A Python worker of Spark did not start in time; trying again.")
            status = self._attempt()
        self._say(status, is_due=True)
        return status

    def _attempt(self) -> Status:
        try:
            self._begin()
            return self._watch_queries()
        except PenstockError as error:
            return Status("failed", self._all(), error.message)
        except Exception as error:  # whatever a step does, or Spark
            log.debug("The pipeline failed.", exc_info=True)
            return Status("failed", self._all(), _words_of(error))
        finally:
            self._end_queries()

    def _begin(self) -> None:
        definition = self._definition
        if definition.uses:
            ready = READY[definition.uses]
            around = Surroundings(self._spark, definition, self._checkpoint, self._trigger, self._tell)
            queries = ready.start(ready.check(definition), around)
        else:
            queries = Flow(definition, self._spark).start(self._checkpoint, self._trigger)
        for query in queries:
            name = query.name or str(query.id)
            self._queries[name] = query
            self._figures.setdefault(name, Figures(name))

    def _watch_queries(self) -> Status:
        while True:
            is_any_active = any(query.isActive for query in self._queries.values())
            self._take_progress()
            for query in self._queries.values():
                error = query.exception()
                if error is not None:
                    return Status("failed", self._all(), _words_of(error))
            if not is_any_active:
                return Status("finished", self._all())
            if self._stopping.is_set():
                self._await_batches()
                self._take_progress()
                return Status("stopped", self._all())
            self._say(Status("running", self._all()))
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

    def _all(self) -> list[Figures]:
        return list(self._figures.values())

    def _say(self, status: Status, *, is_due: bool = False) -> None:
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


def checkpoint_of(definition: Definition) -> Path:
    """Where a pipeline remembers how far it is: beside its file, unless it says otherwise."""
    beside = Path(definition.file or ".").resolve().parent
    if definition.checkpoint:
        return beside / definition.checkpoint
    return beside / ".penstock" / "checkpoints" / definition.name


def _words_of(error: BaseException) -> str:
    """What went wrong, without plans and stacks: in our own words, if it was one of us who said so."""
    words = str(error)
    for pattern in _OUR_WORDS:
        found = pattern.findall(words)
        if found:
            return str(found[-1]).strip()[:_ERROR_CHARS_MAX]
    return _END.split(words, maxsplit=1)[0].strip()[:_ERROR_CHARS_MAX] or type(error).__name__
