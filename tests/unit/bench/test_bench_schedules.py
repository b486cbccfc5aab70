"""The bench of schedules: options, what is told of lateness, goals, and the picture."""

from pathlib import Path

import pytest
from bench.schedules.picture import draw
from bench.schedules.rows import Lateness
from bench.schedules.run import _meets_goals, parse
from bench.schedules.servers import SIZE, due_of, values_for
from rich.console import Console


@pytest.mark.parametrize("arguments", [["--targets", "rabbit"], ["--rate", "10"], ["--rate", "150"], ["--wat"]])
def test_bad_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)


def test_defaults_are_the_promised_sizes() -> None:
    options = parse([])
    assert (options.pending, options.rate) == (1_000_000, 10_000)


def test_a_message_tells_when_it_is_due() -> None:
    values = values_for(1_700_000_000_123, 3)
    assert [due_of(value) for value in values] == [1_700_000_000_123] * 3
    assert len(set(values)) == 3
    assert {len(value) for value in values} == {SIZE}


def test_lateness_is_told_from_the_median_to_the_worst() -> None:
    found = Lateness(100, [float(each) for each in range(1000)], processor_s=0.05)
    assert [value for _, value, _ in found.rows()] == [500, 990, 999, pytest.approx(50)]


@pytest.mark.parametrize(("late_ms", "is_met"), [(19.9, True), (20.1, False)])
def test_goals_are_those_of_penstock(late_ms: float, is_met: bool) -> None:
    row = "10,000 due a second: late, 99th percentile (ms)"
    figures = {row: {"penstock": late_ms, "redis": 1000.0}}
    assert _meets_goals(figures, parse([]), Console(quiet=True)) is is_met


def test_lateness_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "late.svg"
    draw(path, {"penstock": Lateness(100, [1.0, 2.0, 3.0]), "redis": Lateness(100, [4.0, 5.0])}, 20.0)
    assert path.read_text().count("<path") > 10
