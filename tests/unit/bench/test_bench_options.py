"""Options, the choice of rows, and the order of a run."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench.bench import choose, make_plan, parse
from bench.goals import GOALS
from bench.kafka import version_key
from bench.report import Grid, Report, number, times
from bench.session import Results, Sample
from bench.targets import Penstock
from bench.workloads import all_workloads

KAFKA = Penstock("kafka", "stands in for Kafka: nothing is started here")
PENSTOCK = Penstock("penstock", "")
VARIANT = Penstock("kafka+fsync", "")


def test_defaults_run_both_families() -> None:
    options = parse([])
    assert options.targets == ["penstock", "kafka"]
    assert options.out == Path("bench/out")


@pytest.mark.parametrize("arguments", [["--targets", "rabbit"], ["--seconds", "0"], ["--seconds", "soon"], ["--wat"]])
def test_bad_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)


def test_quick_is_a_real_subset_that_still_covers_most_goals() -> None:
    everything = all_workloads()
    quick = choose(everything, quick=True, only=None)
    assert 0 < len(quick) < len(everything)
    rows = {row.id for work in quick for row in work.rows()}
    assert {"produce-1k-acks1-1p", "consume-1k-8p", "one-message-a-request", "latency-1k-acks1-p99"} <= rows


def test_a_pattern_is_a_glob_or_a_part_and_ignores_quick() -> None:
    chosen = choose(all_workloads(), quick=True, only=["consume-10k-1p"])
    assert [work.id for work in chosen] == ["produce-10k-acks1-1p"]
    assert {w.kind for w in choose(all_workloads(), quick=False, only=["latency-*-p50"])} == {"latency"}


def test_row_ids_are_unique_and_every_goal_names_one() -> None:
    plan = make_plan(parse([]), [PENSTOCK])
    ids = [row.id for row in plan.rows()]
    assert len(ids) == len(set(ids))
    assert {goal.row for goal in GOALS} <= set(ids)


def test_rounds_alternate_the_order_and_variants_run_only_durability_rows() -> None:
    plan = make_plan(parse(["--rounds", "2"]), [PENSTOCK, KAFKA, VARIANT])
    names = [[t.name for t in plan.order(n)] for n in (1, 2)]
    assert names[0] == names[1][::-1]
    assert all(work.durability for work in plan.workloads_of(VARIANT))
    assert plan.workloads_of(KAFKA) == [work for work in plan.workloads if work.nodes == 1]


def test_rows_of_three_nodes_run_on_targets_of_three_nodes_and_only_if_there_are_any() -> None:
    three = replace(KAFKA, nodes=3)
    plan = make_plan(parse(["--only", "three-nodes-*"]), [KAFKA, three])
    assert plan.workloads_of(three) == list(plan.workloads)
    assert plan.workloads_of(KAFKA) == []
    single = make_plan(parse(["--only", "latency-20k-*"]), [KAFKA, three])
    assert single.order(1) == [KAFKA]


def test_report_shows_ratios_and_marks_what_is_behind(tmp_path: Path) -> None:
    plan = make_plan(parse(["--only", "consume-1k-8p"]), [PENSTOCK, KAFKA])
    samples = [Sample("consume-1k-8p", "penstock", 1, 110.0), Sample("consume-1k-8p", "kafka", 1, 100.0)]
    report = Report(plan, Results(samples), {"cpu": "one"})
    report.write(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "| consume-1k-8p (MB/s) | 110 | 100 | 1.10× |" in text
    assert "✗ behind" in text
    assert [one.goal.row for one in report.behind()] == ["consume-1k-8p"]
    assert (tmp_path / "results.json").read_text().startswith("{")


def test_numbers_carry_no_false_precision() -> None:
    assert [number(v) for v in (None, 0.12345, 12.345, 1234.5)] == ["–", "0.123", "12.3", "1,234"]
    assert times(1.234) == "1.23×"


def test_markdown_grid_has_a_rule_line() -> None:
    lines = Grid("t", ["a", "b"], [["1", "2"]]).as_markdown().splitlines()
    assert lines[2:] == ["| a | b |", "| --- | ---: |", "| 1 | 2 |"]


def test_versions_compare_as_numbers() -> None:
    assert max(["4.9.0", "4.10.1", "3.9.2"], key=version_key) == "4.10.1"
