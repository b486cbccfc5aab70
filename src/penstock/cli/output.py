"""Results on standard output: JSON lines for machines, tables for people. Everything else goes to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
import msgspec

_encoder = msgspec.json.Encoder(enc_hook=str)


def is_for_people(output: str | None) -> bool:
    """Whether to print a table: if asked to, or if nothing was asked and a person looks."""
    return output == "table" or (output is None and sys.stdout.isatty())


def echo_json(value: object) -> None:
    """One JSON value on one line."""
    click.echo(_encoder.encode(value))


def echo_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table, with lines and colours on a terminal and plain columns elsewhere."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _echo_rich(columns, cells, rows)
    else:
        _echo_plain(columns, cells)


def _echo_rich(columns: Sequence[str], cells: list[list[str]], rows: Sequence[Sequence[object]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    header_style = "" if os.environ.get("NO_COLOR") else "bold"  # some take bold for a colour
    table = Table(box=box.SIMPLE_HEAD, header_style=header_style, pad_edge=False, collapse_padding=True)
    for at, column in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[at], int) for row in rows)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))  # Text: a topic named [red] is data, not markup
    Console().print(table)


def _echo_plain(columns: Sequence[str], cells: list[list[str]]) -> None:
    lines = [[column.upper() for column in columns], *cells]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def printable(text: str) -> str:
    """Text in which nothing can play tricks on a terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def count_of(count: int, noun: str) -> str:
    """'1 message', '2 messages'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
