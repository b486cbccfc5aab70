"""How long something takes, as people give it and are told."""

from __future__ import annotations

import re
from typing import Final

import click

_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


class Span(click.ParamType[int]):
    """``500ms``, ``30s``, ``2m``, ``1h``; a number alone is seconds. Becomes milliseconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _SPAN.fullmatch(str(value))
        if found is None:
            self.fail(f"{str(value)!r} is not how long; give 500ms, 30s, 2m or 1h", param, ctx)
        return round(float(found[1]) * _UNITS_MS[found[2] or "s"])


def span_text(span_ms: int | None) -> str:
    """About how long: 90s, 12m, 3h, 2d."""
    if span_ms is None:
        return "-"
    for unit_ms, unit in _UNITS:
        if span_ms >= 2 * unit_ms:
            return f"{span_ms // unit_ms}{unit}"
    return f"{span_ms}ms"
