"""Figures of a query, of what Spark says about its batches and about doing nothing."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from penstock.pipelines.flow import unmet_of
from penstock.pipelines.run import QueryFigures, lag_between


def offsets(**partitions: int) -> str:
    return json.dumps({"version": 1, "topics": {"t": {"id": "x", "offsets": partitions}}})


def progress(batch: int, rows: int = 0, *, is_idle: bool = False, unmet: int = 0) -> Any:
    row = SimpleNamespace(asDict=lambda: {"has an id": unmet})
    return SimpleNamespace(
        batchId=batch,
        numInputRows=rows,
        processedRowsPerSecond=float("nan") if is_idle else rows / 2,
        durationMs={"triggerExecution": 5} if is_idle else {"triggerExecution": 2000, "addBatch": 1500},
        sources=[SimpleNamespace(endOffset=offsets(a=rows), latestOffset=offsets(a=rows + 3, b=2))],
        observedMetrics={} if is_idle else {"unmet:orders:0": row, "other": row},
    )


def test_a_batch_counts_once_also_if_spark_was_idle_under_its_number() -> None:
    figures = QueryFigures("q")
    figures.note(progress(57, is_idle=True))  # begun again at a checkpoint
    assert (figures.batch, figures.rows) == (56, 0)
    figures.note(progress(57, 10, unmet=2))
    figures.note(progress(57, 10, unmet=2))
    assert (figures.batch, figures.rows, figures.rows_per_second, figures.batch_ms) == (57, 10, 5.0, 2000)
    figures.note(progress(58, is_idle=True))
    assert (figures.batch, figures.rows_per_second) == (57, 0.0)
    figures.note(progress(58, 4, unmet=1))
    assert (figures.batch, figures.rows, figures.unmet, figures.lag) == (58, 14, {"has an id": 3}, 5)


def test_rows_that_are_observed_over_connect_come_as_values_and_a_schema() -> None:
    fields = [{"name": "has an id", "type": "long"}, {"name": "costs something", "type": "long"}]
    row = SimpleNamespace(asDict=lambda: {"values": [3, 4], "schema": {"type": "struct", "fields": fields}})
    assert unmet_of({"unmet:orders:0": row}) == {"has an id": 3, "costs something": 4}
    named = SimpleNamespace(asDict=lambda: {"values": 1, "schema": 2})
    assert unmet_of({"unmet:orders:0": named}) == {"values": 1, "schema": 2}, "expectations may be called so"


def test_a_lag_that_is_not_known_is_none() -> None:
    assert lag_between(offsets(a=5), offsets(a=9, b=1)) == 5
    assert lag_between(offsets(a=9), offsets(a=5)) == 0
    assert lag_between(None, offsets(a=5)) is None
    assert lag_between("17", "19") is None
