"""How far a query is, of what Spark says about its batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import msgspec

from penstock.pipelines.flow import unmet_of


@dataclass(slots=True)
class Figures:
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
