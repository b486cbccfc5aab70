"""Replicas on their way, watched: a line that counts down for a person who waits, and the end of it for everybody."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.output import count_of
from penstock.cli.rest import Rest

_LOOK_EVERY_S: Final = 0.5
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(count: float | None) -> str:
    """About how many bytes: 512 B, 1.5 GiB."""
    if count is None:
        return "-"
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_UNITS[0]}" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


def moves_under_way(rest: Rest, topic: str | None = None, node_id: int | None = None) -> list[dict[str, Any]]:
    """The partitions whose replicas are moving: all, those of a topic, or those that leave a node."""
    rows: list[dict[str, Any]] = rest.get("v1", "reassignments")["reassignments"]
    if topic is not None:
        rows = [row for row in rows if row["topic"] == topic]
    if node_id is not None:
        rows = [row for row in rows if node_id in row["removing"]]
    return rows


def wait_for_moves(
    rest: Rest, timeout_s: float | None, *, topic: str | None = None, node_id: int | None = None
) -> None:
    """Return when nothing is moving any more; exit code 5 if that takes longer than ``timeout_s``."""
    started = time.monotonic()
    line = _Line()
    try:
        while rows := moves_under_way(rest, topic, node_id):
            line.show(rows)
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                raise CommandError(
                    f"After {timeout_s:g} s {count_of(len(rows), 'partition')} still move. They go on by themselves.",
                    Exit.UNAVAILABLE,
                )
            time.sleep(_LOOK_EVERY_S)
    finally:
        line.clear()


class _Line:
    """How much is left, and how fast it becomes less."""

    def __init__(self) -> None:
        self._is_on = sys.stderr.isatty()
        self._is_shown = False
        self._before: tuple[float, int] | None = None
        self._rate = 0.0

    def show(self, rows: list[dict[str, Any]]) -> None:
        if self._is_on:
            self._is_shown = True
            click.echo(f"\r\x1b[K{self._text(rows)}", nl=False, err=True)

    def _text(self, rows: list[dict[str, Any]]) -> str:
        left = [row["bytes_left"] for row in rows]
        text = f"{count_of(len(rows), 'partition')} left to move"
        if None in left:
            return text
        now, size_bytes = time.monotonic(), sum(left)
        if self._before is not None:
            seconds = max(now - self._before[0], 0.001)
            rate = max(self._before[1] - size_bytes, 0) / seconds
            self._rate = rate if not self._rate else 0.7 * self._rate + 0.3 * rate
        self._before = (now, size_bytes)
        speed = f", {size_text(self._rate)}/s" if self._rate >= 1 else ""
        return f"{text}, {size_text(size_bytes)}{speed}"

    def clear(self) -> None:
        if self._is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)
