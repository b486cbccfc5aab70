"""What is said about files of pipelines: everything that is wrong, each at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidPipeline
from penstock.pipelines.definition import Definition, Otherwise, TriggerKind, definition_of
from penstock.pipelines.files import load
from penstock.pipelines.text import read_text

WHOLE = """\
pipeline: paid-orders
servers: http://node-1:8080,http://node-2:8080
sources:
  orders:
    topics: [orders, old-orders]
    schema: "id STRING, amount DOUBLE, at TIMESTAMP"
    maxRecordsPerTrigger: 10000
    watermark: {column: at, delay: 10s}
  customers: {format: parquet, path: lake/customers}
steps:
  paid: SELECT o.*, c.name FROM orders o JOIN customers c USING (id) WHERE amount > 0;
expectations:
  paid:
    - id IS NOT NULL
    - {name: small, check: amount < 1000, otherwise: dead-letter, topic: odd}
sinks:
  totals: {from: paid, topic: totals, key: id, mode: update}
  lake: {from: paid, format: parquet, path: lake/paid, partitionBy: [day]}
trigger: {every: 5 minutes}
checkpoint: state
spark: {spark.sql.shuffle.partitions: 4}
"""


def told(content: str) -> list[str]:
    """What is wrong with a file, line by line."""
    with pytest.raises(InvalidPipeline) as caught:
        definition_of(read_text(content, "p.yaml"), "p.yaml", ready=("archive", "restore"))
    return caught.value.message.split("\n")


def read(content: str) -> Definition:
    return definition_of(read_text(content, "p.yaml"), "p.yaml")


def test_a_whole_file_is_read() -> None:
    found = read(WHOLE)
    assert found.name == "paid-orders"
    assert found.servers == "http://node-1:8080,http://node-2:8080"
    orders = found.sources["orders"]
    assert orders.options == {
        "topics": "orders,old-orders",
        "schema": "id STRING, amount DOUBLE, at TIMESTAMP",
        "maxRecordsPerTrigger": "10000",
    }
    assert orders.is_stream
    assert orders.watermark is not None
    assert orders.watermark.delay == "10 seconds"
    assert not found.sources["customers"].is_stream
    assert found.tables == ["orders", "customers", "paid"]
    assert [each.otherwise for each in found.expectations["paid"]] == [Otherwise.FAIL, Otherwise.DEAD_LETTER]
    assert found.sinks["totals"].columns == {"key": "id"}
    assert found.sinks["totals"].mode == "update"
    assert found.sinks["lake"].partition_by == ("day",)
    assert found.trigger.kind is TriggerKind.EVERY
    assert found.trigger.interval == "5 minutes"
    assert found.spark == {"spark.sql.shuffle.partitions": "4"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("pipeline: paid-orders", "pipeline: paid orders"), "p.yaml:1:11: 'paid orders' is no name"),
        (("pipeline: paid-orders\n", ""), "p.yaml:1:1: the pipeline has no name"),
        (("sources:", "sauces:"), "p.yaml:3:1: 'sauces' is not known here. Did you mean 'sources'?"),
        (("topics: [orders", "topic: [orders"), "p.yaml:5:5: source 'orders' names no topic"),
        (("delay: 10s", "delay: soon"), "p.yaml:8:36: 'soon' is no span of time"),
        (("delay: 10s", "daily: 10s"), "p.yaml:8:29: 'daily' is not known here. Did you mean 'delay'?"),
        (("SELECT o.*", "DROP o.*"), "p.yaml:11:9: step 'paid' is no query"),
        (("otherwise: dead-letter", "otherwise: cry"), "p.yaml:15:54: 'cry' is not one of drop, fail, dead-letter."),
        (("otherwise: dead-letter, topic: odd", "otherwise: dead-letter"), "p.yaml:15:7: `otherwise: dead-letter` and"),
        (("from: paid, topic", "from: payd, topic"), "p.yaml:17:11: 'payd', which is no source or step. Did you mean"),
        (
            ("totals: {from: paid, topic: totals", "totals: {from: paid, tropic: totals"),
            "p.yaml:17:11: sink 'totals' names",
        ),
        (("mode: update", "mode: upsert"), "p.yaml:17:54: 'upsert' is not one of append, update, complete."),
        (("every: 5 minutes", "each: 5 minutes"), "p.yaml:19:11: 'each' is not known here."),
        (("  paid:\n    - id", "  unpaid:\n    - id"), "p.yaml:14:7: 'unpaid', which is no source or step."),
        (("  customers: {", "  9customers: {"), "p.yaml:9:15: '9customers' is no name for SQL"),
        (("checkpoint: state", "checkpoint: state\npipeline: again"), "p.yaml:21:1: 'pipeline' is here for the second"),
        (("{from: paid, format", "[from: paid, format"), "p.yaml:"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(change: tuple[str, str], said: str) -> None:
    assert change[0] in WHOLE
    lines = told(WHOLE.replace(*change, 1))
    assert any(line.startswith(said) for line in lines), lines


def test_everything_wrong_is_told_at_once() -> None:
    lines = told("pipeline: 1x\nsteps: {a: 5}\ntrigger: never\n")
    assert len(lines) == 5
    assert [line.split(":")[1] for line in lines] == ["1", "1", "1", "2", "3"]


@pytest.mark.parametrize("content", ["", "# nothing\n", "- a\n- b\n", "just words", "a: [1,\n"])
def test_what_is_no_pipeline_at_all_is_told_so(content: str) -> None:
    assert told(content)[0].startswith("p.yaml:")


def test_a_ready_pipeline_is_named_and_has_no_parts() -> None:
    assert told("pipeline: a\nuses: archives\n") == [
        "p.yaml:2:7: there is no ready pipeline 'archives'. Did you mean 'archive'?"
    ]
    assert told("pipeline: a\nuses: archive\nsinks: {}\n")[0].startswith("p.yaml:3:8: a ready pipeline")
    assert told("pipeline: a\nwith: {}\n")[0].startswith("p.yaml:2:7: `with` belongs to a ready pipeline")


PYTHON = """\
from penstock.pipelines import Pipeline

orders = Pipeline("orders")
orders.source("orders", topics="orders")

@orders.step
def paid(orders):
    return orders.where("amount > 0")

orders.sink("paid", topic="paid")
"""


def load_python(directory: Path, content: str) -> Definition:
    file = directory / "orders.py"
    file.write_text(content)
    return load(file)


def test_a_pipeline_in_python_is_checked_like_one_in_yaml(tmp_path: Path) -> None:
    found = load_python(tmp_path, PYTHON)
    assert list(found.steps) == ["paid"]
    assert found.sinks["paid"].options == {"topic": "paid"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('sink("paid"', 'sink("pad"'), "orders.py:10:1: 'pad', which is no source or step."),
        (
            ("def paid(orders)", "def paid(order)"),
            "orders.py:6:1: step 'paid' reads 'order', which is no source or step.",
        ),
        (("import Pipeline\n", "import Pipeline\n1/0\n"), "orders.py:2:1: ZeroDivisionError"),
        (("orders.step\n", "orders.step(\n"), "orders.py:"),
        (('orders = Pipeline("orders")', 'orders = None\nPipeline("orders")'), "orders.py:5:1: AttributeError"),
        (('topics="orders"', 'topic="orders"'), "orders.py:4:1: source 'orders' names no topic"),
    ],
)
def test_python_too_is_told_its_line(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    assert change[0] in PYTHON
    with pytest.raises(InvalidPipeline) as caught:
        load_python(tmp_path, PYTHON.replace(*change, 1))
    assert said in caught.value.message


def test_a_file_that_is_not_there_or_not_of_a_kind_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="pipeline init"):
        load(tmp_path / "none.yaml")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InvalidPipeline, match="neither YAML nor Python"):
        load(tmp_path / "a.txt")
    (tmp_path / "two.py").write_text("from penstock.pipelines import Pipeline\na, b = Pipeline('a'), Pipeline('b')\n")
    with pytest.raises(InvalidPipeline, match="has 2 pipelines"):
        load(tmp_path / "two.py")
