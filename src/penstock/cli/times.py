"""Times and durations, as users write them on the command line and as they read them in its output."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")


class PastTime(click.ParamType[datetime]):
    """``2025-01-31``, ``2025-01-31T12:00:00+01:00``, milliseconds since the epoch, or how long ago: ``90s``, ``2h``."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value)
        try:
            return parse_time(text, datetime.now(UTC))
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
            self.fail(f"{text!r} is a duration, not a time; give 2026-01-31T12:00:00Z, or use --delay", param, ctx)
        try:
            return parse_time(text, datetime.now(UTC))
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is not a time; give 2026-01-31T12:00:00Z", param, ctx)


class DurationMs(click.ParamType[int]):
    """``500ms``, ``30s``, ``2m``, ``1h``; a number alone is seconds. Becomes milliseconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _DURATION.fullmatch(str(value))
        if found is None:
            self.fail(f"{str(value)!r} is not a duration; give 500ms, 30s, 2m or 1h", param, ctx)
        return round(float(found[1]) * _UNITS_MS[found[2] or "s"])


def parse_time(text: str, now: datetime) -> datetime:
    """The time that ``text`` stands for, in UTC. Without a time zone it is in this machine's own."""
    if ago := _AGO.fullmatch(text):
        return now - timedelta(milliseconds=float(ago[1]) * _UNITS_MS[ago[2]])
    if text.isdecimal() and len(text) > 8:  # 20250131 is a date
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    return datetime.fromisoformat(text).astimezone(UTC)


def duration_text(duration_ms: int | None) -> str:
    """A rough duration: 90s, 12m, 3h, 2d."""
    if duration_ms is None:
        return "-"
    for unit in ("d", "h", "m", "s"):
        if duration_ms >= 2 * _UNITS_MS[unit]:
            return f"{duration_ms // _UNITS_MS[unit]}{unit}"
    return f"{duration_ms}ms"


def time_text(text: str | None) -> str:
    """An ISO time to the second: 2026-01-31 12:00:00."""
    return "-" if text is None else text[:19].replace("T", " ")
