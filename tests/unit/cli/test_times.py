"""Times and durations, as users write and read them."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest

from penstock.cli.times import DurationMs, duration_text, parse_time

NOW = datetime(2025, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("90s", datetime(2025, 1, 31, 11, 58, 30, tzinfo=UTC)),
        ("1.5h", datetime(2025, 1, 31, 10, 30, tzinfo=UTC)),
        ("2d", datetime(2025, 1, 29, 12, tzinfo=UTC)),
        ("2025-01-31T12:00:00Z", NOW),
        ("2025-01-31T13:00:00+01:00", NOW),
        ("1738324800000", NOW),
    ],
)
def test_times_are_absolute_or_how_long_ago(text: str, time: datetime) -> None:
    assert parse_time(text, NOW) == time


def test_a_date_is_midnight_here() -> None:
    assert parse_time("2025-01-31", NOW) == datetime(2025, 1, 31).astimezone(UTC)
    assert parse_time("20250131", NOW) == parse_time("2025-01-31", NOW)


@pytest.mark.parametrize("text", ["", "yesterday", "5 apples", "-3h", "2025-13-01"])
def test_anything_else_is_not_a_time(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("30", 30_000),
        ("0", 0),
        ("1.5m", 90_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
    ],
)
def test_durations_become_milliseconds(text: str, duration_ms: int) -> None:
    assert DurationMs().convert(text, None, None) == duration_ms


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 s", "soon", "1w", "1e3"])
def test_anything_else_is_not_a_duration(text: str) -> None:
    with pytest.raises(click.BadParameter):
        DurationMs().convert(text, None, None)


def test_durations_are_shown_in_a_fitting_unit() -> None:
    assert [duration_text(ms) for ms in (None, 0, 1_500, 90_000, 8 * 3_600_000, 3 * 86_400_000)] == [
        "-",
        "0ms",
        "1500ms",
        "90s",
        "8h",
        "3d",
    ]
