"""Ready pipelines without Spark: options, what they come to, plans of restores, and the page of dead letters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.pipeline import pipeline
from penstock.errors import InvalidPipeline
from penstock.pipelines.definition import Definition, definition_of
from penstock.pipelines.files import load
from penstock.pipelines.lake.reading import ArchivedSpan
from penstock.pipelines.ready import READY
from penstock.pipelines.ready.dead_letters import FailureGroup, Sample, bars_by_name, bars_over_time, page_of
from penstock.pipelines.ready.flows import FlowPipeline
from penstock.pipelines.ready.restore import portions_of
from penstock.pipelines.text import FilePlace, FileValue

OPTIONS = {
    "aggregate": "topic: t, schema: a INT, window: 1 minute, measures: [count(*) AS n], by: a, to: x",
    "join": "left: a, leftSchema: i INT, right: b, rightSchema: i INT, on: l.i=r.i, select: l.i, within: 1 day, to: x",
    "dedupe": "topic: t, to: x, horizon: 1 hour",
    "enrich": "topic: t, schema: a INT, table: t.csv, format: csv, on: a, columns: b, path: x",
    "archive": "topics: t, lake: l",
    "restore": "lake: l",
    "replay": "lake: l, topic: t",
    "dead-letters": "path: p",
    "health": "to: t",
}


def loaded(directory: Path, name: str, options: str) -> Definition:
    path = directory / "pipeline.yaml"
    path.write_text(f"pipeline: p\nuses: {name}\nwith:\n  {{{options}}}\n")
    return load(path)


@pytest.mark.parametrize("name", READY)
def test_each_says_what_it_takes_and_refuses_the_rest(tmp_path: Path, name: str) -> None:
    definition = loaded(tmp_path, name, OPTIONS[name])
    values = READY[name].check(definition)
    assert values.keys() == READY[name].options.keys()
    with pytest.raises(InvalidPipeline, match=r"pipeline\.yaml:4:\d+: .* has no option 'bogus'"):
        loaded(tmp_path, name, OPTIONS[name] + ", bogus: 1")
    if name != "health":  # there, one of two
        needed = OPTIONS[name].split(":")[0]
        with pytest.raises(InvalidPipeline, match=f"needs `{needed}`"):
            loaded(tmp_path, name, re.sub(r"^\w+: [^,]*(, )?", "", OPTIONS[name]))


@pytest.mark.parametrize("name", [name for name, ready in READY.items() if isinstance(ready, FlowPipeline)])
def test_a_flow_is_a_pipeline_like_any_other(tmp_path: Path, name: str) -> None:
    ready = READY[name]
    assert isinstance(ready, FlowPipeline)
    options = ready.check(loaded(tmp_path, name, OPTIONS[name]))
    document = FileValue.of({"pipeline": "p", **ready.document(options)}, FilePlace(1, 1))
    definition = definition_of(document, "p", ready.steps(options))
    (sink,) = definition.sinks.values()
    assert sink.rows in definition.steps


@pytest.mark.parametrize("name", READY)
def test_a_file_with_all_options_is_written(tmp_path: Path, name: str) -> None:
    file = tmp_path / "made.yaml"
    done = CliRunner().invoke(pipeline, ["init", str(file), "--uses", name], standalone_mode=False)
    assert done.exception is None
    assert load(file).uses == name
    for option in READY[name].options:
        assert f"  {option}: " in file.read_text() or f"  # {option}: " in file.read_text()


def test_where_it_goes_is_said_once(tmp_path: Path) -> None:
    ready = READY["enrich"]
    assert isinstance(ready, FlowPipeline)
    for given in (OPTIONS["enrich"] + ", to: y", OPTIONS["enrich"].replace(", path: x", "")):
        with pytest.raises(InvalidPipeline, match="one of them"):
            ready.document(ready.check(loaded(tmp_path, "enrich", given)))


def testportions_of_cover_everything_once_and_in_order() -> None:
    spans = {
        ("t", 0, 0): ArchivedSpan(0, 1000),
        ("t", 0, 1): ArchivedSpan(10, 13),
        ("t", 1, 0): ArchivedSpan(0, 5),
        ("u", 0, 0): ArchivedSpan(7, 7),
    }
    counts = {("t", 0, 0): 900, ("t", 0, 1): 3, ("t", 1, 0): 5, ("u", 0, 0): 0}
    portions = list(portions_of(spans, counts, 250))
    assert len(portions) == 5
    reached: dict[tuple[str, int, int], int] = {}
    for portion in portions:
        for where, span in portion.spans().items():
            assert span.begin == reached.get(where, spans[where].begin)
            reached[where] = span.end
    assert reached == {where: span.end for where, span in spans.items() if span.end > span.begin}
    assert [where[1] for where in portions[-1].spans()] == [1], "a topic made anew comes after the first one"


def test_the_page_of_dead_letters_needs_nothing_else_and_trusts_nobody() -> None:
    sample = Sample("0:1", "2026-01-01", "<k>", "<script>", "<b>", 3)
    groups = [FailureGroup("orders", "g", f"<failure {at}>", at + 1, "a", "b", (sample,)) for at in range(9)]
    times = {(f"0{at % 3}:00", f"<failure {at}>"): at + 1 for at in range(9)}
    page = page_of(groups, times)
    assert "45 messages in 9 groups" in page
    assert page.count("<svg") == 2
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "others" in page
    assert not re.search(r"(src|href)=", page)
    assert "There are none." in page_of([], {})


def test_charts_show_every_count() -> None:
    chart = bars_over_time(["a", "b"], {"x": [1, 0], "y": [2, 3]})
    assert chart.count("<rect") == 3
    assert bars_by_name({"x": 2, "y" * 99: 1}).count("<rect") == 2
    assert bars_over_time([], {}).startswith("<svg")
