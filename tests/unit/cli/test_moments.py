"""Points in time as people give them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.cli.moments import parse_moment

NOW = datetime(2025, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", datetime(2025, 1, 31, 11, 58, 30, tzinfo=UTC)),
        ("1.5h", datetime(2025, 1, 31, 10, 30, tzinfo=UTC)),
        ("2d", datetime(2025, 1, 29, 12, tzinfo=UTC)),
        ("2025-01-31T12:00:00Z", NOW),
        ("2025-01-31T13:00:00+01:00", NOW),
        ("1738324800000", NOW),
    ],
)
def test_times_are_absolute_or_how_long_ago(text: str, moment: datetime) -> None:
    assert parse_moment(text, NOW) == moment


def test_a_date_is_midnight_here() -> None:
    assert parse_moment("2025-01-31", NOW) == datetime(2025, 1, 31).astimezone(UTC)
    assert parse_moment("20250131", NOW) == parse_moment("2025-01-31", NOW)


@pytest.mark.parametrize("text", ["", "yesterday", "5 apples", "-3h", "2025-13-01"])
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):
        parse_moment(text, NOW)
