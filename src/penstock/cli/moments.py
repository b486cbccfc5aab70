"""Points in time as people give them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Moment(click.ParamType[datetime]):
    """``2025-01-31``, ``2025-01-31T12:00:00+01:00``, milliseconds since the epoch, or how long ago: ``90s``, ``2h``."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value)
        try:
            return parse_moment(text, datetime.now(UTC))
        except (ValueError, OverflowError):
            self.fail(
                f"{text!r} is not a time; give 2025-01-31T12:00:00Z, or how long ago, such as 90s or 2h", param, ctx
            )


class PointInTime(click.ParamType[datetime]):
    """``2025-01-31T12:00:00Z`` or milliseconds since the epoch; nothing that counts from now."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value)
        if _AGO.fullmatch(text):
            self.fail(f"{text!r} is how long, not when; give 2026-01-31T12:00:00Z, or use --delay", param, ctx)
        try:
            return parse_moment(text, datetime.now(UTC))
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is not a time; give 2026-01-31T12:00:00Z", param, ctx)


def parse_moment(text: str, now: datetime) -> datetime:
    """The moment that ``text`` stands for, in UTC. A time without a zone is in this machine's own."""
    if ago := _AGO.fullmatch(text):
        return now - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
    if text.isdecimal() and len(text) > 8:  # 20250131 is a date
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    return datetime.fromisoformat(text).astimezone(UTC)
