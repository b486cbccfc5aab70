"""Schedules on the command line, as far as no node is asked: times, and previews of cron expressions."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from penstock.cli.main import cli
from penstock.cli.times import PointInTime


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(words))
    return result.exit_code, result.output


def test_the_next_times_of_a_cron_expression_are_told_in_its_zone() -> None:
    code, output = run("schedule", "next", "30 7 * * mon", "--time-zone", "Europe/Berlin", "-n", "3")
    assert code == 0
    times = [json.loads(line)["time"] for line in output.splitlines()]
    assert len(times) == 3
    assert all("T07:30:00+0" in each for each in times)
    code, output = run("schedule", "next", "@hourly", "-o", "table")
    assert code == 0
    assert output.splitlines()[0].split() == ["TIME", "IN"]
    assert len(output.splitlines()) == 6


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["schedule", "add", "t", "v"], "Give one of"),
        (["schedule", "add", "t", "v", "--at", "3d"], "use --delay"),
        (["schedule", "add", "t", "v", "--at", "soon"], "is not a time"),
        (["schedule", "add", "t", "v", "--delay", "soon"], "is not a duration"),
        (["schedule", "add", "t", "v", "--delay", "1s", "--at", "2030-01-01T00:00:00Z"], "exclude each other"),
        (["schedule", "add", "t", "v", "--every", "1s", "--cron", "@daily"], "exclude each other"),
        (["schedule", "add", "t", "v", "--cron", "@daily", "--delay", "1s"], "leave out"),
        (["schedule", "add", "t", "v", "--delay", "1s", "--time-zone", "UTC"], "goes with --cron"),
        (["schedule", "reschedule", "x"], "Give one of"),
        (["queue", "send", "t", "v", "--delay", "1s", "--at", "2030-01-01T00:00:00Z"], "exclude each other"),
        (["produce", "t", "--delay", "1s", "--at", "2030-01-01T00:00:00Z"], "exclude each other"),
    ],
)
def test_times_that_make_no_sense_are_wrong_usage(words: list[str], told: str) -> None:
    code, output = run(*words)
    assert code == 2
    assert told in output


def test_a_point_in_time_is_absolute() -> None:
    kind = PointInTime()
    assert kind.convert("1738324800000", None, None) == kind.convert("2025-01-31T12:00:00Z", None, None)
    with pytest.raises(click.BadParameter, match="a duration, not a time"):
        kind.convert("90s", None, None)
