"""How long something takes, as people say it."""

from __future__ import annotations

import click
import pytest

from penstock.cli.spans import Span, span_text


@pytest.mark.parametrize(
    ("text", "span_ms"),
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
def test_spans_become_milliseconds(text: str, span_ms: int) -> None:
    assert Span().convert(text, None, None) == span_ms


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 s", "soon", "1w", "1e3"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Span().convert(text, None, None)


def test_spans_are_told_in_about_the_right_unit() -> None:
    assert [span_text(ms) for ms in (None, 0, 1_500, 90_000, 8 * 3_600_000, 3 * 86_400_000)] == [
        "-",
        "0ms",
        "1500ms",
        "90s",
        "8h",
        "3d",
    ]
