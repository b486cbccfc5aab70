"""A pipeline's run on the command line: reported to the cluster, shown on the terminal, and Spark's noise held back."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.exits import CommandError
from penstock.cli.output import count_of
from penstock.cli.rest import RefusedError, Rest

if TYPE_CHECKING:
    from penstock.pipelines.definition import Definition
    from penstock.pipelines.run import RunStatus


class _Held:
    """Holds what is written to standard error; after `let_go`, passes it on."""

    def __init__(self, source: int, target: int) -> None:
        os.set_blocking(source, False)
        self._source, self._target = source, target
        self._parts: list[bytes] | None = []
        self._lock = threading.Lock()
        threading.Thread(target=self._pass_on, name="standard-error", daemon=True).start()

    def let_go(self, *, shows: bool) -> None:
        with self._lock:
            while self._take():  # what was written until now is held too, even if the thread has not read it yet
                pass
            if self._parts and shows:
                os.write(self._target, b"".join(self._parts))
            self._parts = None

    def _pass_on(self) -> None:
        while True:
            select.select([self._source], [], [])
            with self._lock:
                if self._take() == b"":
                    return

    def _take(self) -> bytes | None:
        """Hold or pass on what is there to read: None if nothing is, empty at the end."""
        try:
            part = os.read(self._source, 65536)
        except BlockingIOError:
            return None
        if self._parts is None:
            os.write(self._target, part)
        else:
            self._parts.append(part)
        return part


@contextmanager
def startup_noise_held() -> Iterator[None]:
    """Hold back what this process and its children write to standard error, and show it only on failure.

    Children keep the standard error that they were given, so their later output is passed on.
    """
    sys.stderr.flush()
    source, sink = os.pipe()
    own = os.dup(2)
    held = _Held(source, own)
    os.dup2(sink, 2)
    os.close(sink)
    is_started = False
    try:
        yield
        is_started = True
    finally:
        sys.stderr.flush()
        os.dup2(own, 2)
        held.let_go(shows=not is_started)


LOG_TOPIC: Final = "penstock.pipelines.log"  # an ordinary topic, so every reader can follow it


class Reports:
    """A run's reports to the cluster. A pipeline goes on if no node accepts them."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._rests = [Rest(url.strip()) for url in definition.servers.split(",")]
        self._state = ""
        self._has_warned = False

    def send(self, report: dict[str, Any]) -> bool:
        """Report, and log changes of state; returns whether the run should stop."""
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
                self._has_warned = False
                return bool(answer["stop_requested"])
        self._warn(" ".join(problems))
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

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            click.echo(f"The run cannot be reported to the cluster: {message}", err=True)


QUERY_COLUMNS: Final = ("query", "batch", "rows", "rows/s", "last batch", "lag", "unmet")


def query_row(query: dict[str, Any]) -> list[object]:
    unmet = ", ".join(f"{name}: {count:,}" for name, count in query["unmet"].items() if count)
    lag = "" if query["lag"] is None else f"{query['lag']:,}"
    took = f"{query['batch_ms']:,} ms"
    return [query["name"], query["batch"], query["rows"], f"{query['rows_per_second']:,.0f}", took, lag, unmet]


class _Lines:
    """What a run shows without a terminal: its notices only."""

    def show(self, status: RunStatus) -> None:
        pass

    def tell(self, line: str) -> None:
        click.echo(line, err=True)

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Live(_Lines):
    """A live table on standard error."""

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

    def show(self, status: RunStatus) -> None:
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
