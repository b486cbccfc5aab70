"""A pipeline's run as the command line tells of it: to the cluster, and to whoever watches."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.exits import CommandError
from penstock.cli.output import count_of
from penstock.cli.rest import RefusedError, Rest

if TYPE_CHECKING:
    from penstock.pipelines.definition import Definition
    from penstock.pipelines.run import Status

LOG_TOPIC: Final = "penstock.pipelines.log"  # an ordinary topic, so every reader can follow it


class Reports:
    """A run's reports to the cluster. A pipeline does not stop because a node cannot be told of it."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._rests = [Rest(url.strip()) for url in definition.servers.split(",")]
        self._state = ""
        self._has_complained = False

    def send(self, report: dict[str, Any]) -> bool:
        """Report, and log what changed; whether the run is asked to stop."""
        name = self._definition.name
        problems = []
        for rest in self._rests:
            try:
                answer = rest.put("v1", "pipelines", name, body=report)
                self._log(rest, report)
            except CommandError as error:
                if isinstance(error, RefusedError) and error.code == "pipeline_replaced":
                    click.echo(str(error.message), err=True)
                    return True
                problems.append(str(error.message))
            else:
                self._has_complained = False
                return bool(answer["stop_requested"])
        self._complain(" ".join(problems))
        return False

    def _log(self, rest: Rest, report: dict[str, Any]) -> None:
        if report["state"] == self._state:
            return
        self._state = report["state"]
        rows = sum(query["rows"] for query in report["queries"])
        words = {
            "starting": f"run {report['run']} begins on {report['host']}, {report['master']}",
            "failed": f"failed: {report['error']}",
        }.get(self._state, f"{self._state}, {count_of(rows, 'row')} so far")
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": "error" if self._state == "failed" else "info",
            "run": report["run"],
            "message": words,
        }
        rest.post("v1", "topics", LOG_TOPIC, "publish", body={"key": self._definition.name, "value": line})

    def _complain(self, message: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            click.echo(f"The cluster could not be told how this goes: {message}", err=True)


QUERY_COLUMNS: Final = ("query", "batch", "rows", "rows/s", "last batch", "lag", "unmet")


def query_row(query: dict[str, Any]) -> list[object]:
    unmet = ", ".join(f"{name}: {count:,}" for name, count in query["unmet"].items() if count)
    lag = "" if query["lag"] is None else f"{query['lag']:,}"
    took = f"{query['batch_ms']:,} ms"
    return [query["name"], query["batch"], query["rows"], f"{query['rows_per_second']:,.0f}", took, lag, unmet]


class _Lines:
    """What a run shows where nobody looks at a table: nothing but what it is told to tell."""

    def show(self, status: Status) -> None:
        pass

    def tell(self, line: str) -> None:
        click.echo(line, err=True)

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Live(_Lines):
    """A table that changes as the run goes on, on standard error."""

    def __init__(self, definition: Definition) -> None:
        from rich.console import Console
        from rich.live import Live

        self._name = definition.name
        self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=False)

    def __enter__(self) -> _Live:
        self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._live.__exit__(*details)

    def show(self, status: Status) -> None:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, title=f"{self._name}: {status.state}", title_justify="left")
        for at, column in enumerate(QUERY_COLUMNS):
            table.add_column(column, justify="left" if at in (0, len(QUERY_COLUMNS) - 1) else "right")
        for figures in status.figures:
            name, batch, rows, *rest = query_row(figures.view())
            table.add_row(str(name), str(batch), f"{rows:,}", *(str(cell) for cell in rest))
        self._live.update(table)

    def tell(self, line: str) -> None:
        self._live.console.print(line, markup=False, highlight=False)


def display_of(definition: Definition, *, is_table: bool) -> AbstractContextManager[_Lines]:
    return _Live(definition) if is_table and sys.stderr.isatty() else _Lines()
