"""Charts as SVG to be put into a page: bars over time, and bars beside names. They need nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

COLORS: Final = ("#3b6fb6", "#d9822b", "#4b9b5b", "#b8433f", "#7c5ba6", "#8a6b52", "#9aa1a9")
_WIDTH: Final = 900
_MARGIN: Final = 56


def bars_over_time(times: Sequence[str], series: Mapping[str, Sequence[int]], height: int = 240) -> str:
    """A bar for each time, with a part for each series, one upon the other."""
    sums = [sum(counts[at] for counts in series.values()) for at in range(len(times))]
    most = max(sums, default=0) or 1
    step = (_WIDTH - 2 * _MARGIN) / max(len(times), 1)
    room = height - _MARGIN
    parts = [_text(_MARGIN - 6, 18, f"{most:,}", "end"), _text(_MARGIN - 6, room + 4, "0", "end")]
    parts.append(f'<line x1="{_MARGIN}" y1="{room}" x2="{_WIDTH - _MARGIN}" y2="{room}" stroke="#888"/>')
    for at, time in enumerate(times):
        top = float(room)
        for number, (name, counts) in enumerate(series.items()):
            size = counts[at] / most * (room - 14)
            if not size:
                continue
            top -= size
            x, color = _MARGIN + at * step + 1, COLORS[number % len(COLORS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{max(step - 2, 1):.1f}" height="{size:.1f}" fill="{color}">'
                f"<title>{escape(time)}: {escape(name)}, {counts[at]:,}</title></rect>"
            )
    named = sorted({0, len(times) // 2, len(times) - 1}) if times else []
    parts += [_text(_MARGIN + (at + 0.5) * step, room + 18, times[at], "middle") for at in named]
    return _svg(height, parts)


def bars_by_name(counts: Mapping[str, int]) -> str:
    """A bar for each name, in their order."""
    most = max(counts.values(), default=0) or 1
    parts = []
    for at, (name, count) in enumerate(counts.items()):
        y, width = at * 26, count / most * (_WIDTH * 0.45)
        parts.append(_text(_WIDTH * 0.45, y + 16, name if len(name) <= 60 else name[:59] + "…", "end"))
        parts.append(
            f'<rect x="{_WIDTH * 0.46:.1f}" y="{y + 3}" width="{width:.1f}" height="18" '
            f'fill="{COLORS[at % len(COLORS)]}"/>'
        )
        parts.append(_text(_WIDTH * 0.46 + width + 6, y + 16, f"{count:,}", "start"))
    return _svg(max(len(counts) * 26, 26), parts)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(height: int, parts: Sequence[str]) -> str:
    style = "font: 12px system-ui, sans-serif"
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="100%" role="img" style="{style}">{"".join(parts)}</svg>'
