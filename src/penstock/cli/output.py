"""Results on standard output: JSON lines for machines, tables for people. Everything else goes to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click
import msgspec

_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_CELL_CHARS: Final = 40

Row = Mapping[str, Any]
JsonMessage = dict[str, Any]  # a message as REST has it
# A member of a row, or a function that makes the cell from the row.
Column = str | Callable[[Row], object]

_encoder = msgspec.json.Encoder(enc_hook=str)


class Output(NamedTuple):
    """How a command prints its results: as a table for people, or as JSON."""

    is_table: bool
    is_asked_for: bool  # not the default

    @classmethod
    def of(cls, form: str | None) -> Output:
        """The form that was asked for or, by default, a table on a terminal."""
        return cls(sys.stdout.isatty() if form is None else form == "table", form is not None)

    def rows(self, rows: Sequence[Row], columns: Mapping[str, Column]) -> bool:
        """Rows as JSON lines, or as a table with these headings; returns whether it was a table."""
        if self.is_table:
            echo_rows(rows, columns)
        else:
            for row in rows:
                echo_json(row)
        return self.is_table

    def printed_json(self, detail: object) -> bool:
        """Print one thing as JSON, if that is the form; returns whether it was."""
        if not self.is_table:
            echo_json(detail)
        return not self.is_table

    def done(self, detail: object, sentence: str) -> None:
        """What was done: to people in a sentence, to machines with the thing as it is now."""
        if not self.printed_json(detail):
            click.echo(sentence)


def echo_json(value: object) -> None:
    """One JSON value on one line."""
    click.echo(_encoder.encode(value))


def echo_rows(rows: Sequence[Row], columns: Mapping[str, Column]) -> None:
    """A table with these headings."""
    cells = [[_cell(row[made] if isinstance(made, str) else made(row)) for made in columns.values()] for row in rows]
    echo_table(tuple(columns), cells)


def _cell(value: object) -> object:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return "-" if value is None else value


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

    header_style = "" if os.environ.get("NO_COLOR") else "bold"  # some terminals show bold as a colour
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
    """Text without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def count_of(count: int, noun: str) -> str:
    """'1 message', '2 messages'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size_text(size_bytes: float | None) -> str:
    """A rough size: 512 B, 1.5 GiB."""
    if size_bytes is None:
        return "-"
    unit = 0
    while size_bytes >= 1024 and unit < len(_SIZE_UNITS) - 1:
        size_bytes /= 1024
        unit += 1
    return f"{size_bytes:.0f} {_SIZE_UNITS[0]}" if unit == 0 else f"{size_bytes:.1f} {_SIZE_UNITS[unit]}"


def short_text(row: Row, name: str) -> str:
    """The beginning of a key or value, which JSON has as text or as base64."""
    text = row.get(name, row.get(f"{name}_base64"))
    shown = "-" if text is None else printable(text)
    return shown if len(shown) <= _CELL_CHARS else shown[: _CELL_CHARS - 1] + "…"
