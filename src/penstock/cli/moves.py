"""Replicas that move between nodes: ``penstock topic reassign``, and waiting until moves are done, with progress."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.options import answer_options, timeout_option, topic_name_argument
from penstock.cli.output import Column, Output, count_of, size_text
from penstock.cli.rest import Rest


@click.command()
@topic_name_argument
@click.option("--nodes", metavar="N,N,...", help="Spread all partitions over these nodes in turn.")
@click.option(
    "-r", "--replication-factor", type=click.IntRange(min=1), help="With --nodes: replicas of each partition."
)
@click.option(
    "-m",
    "--move",
    "moves",
    metavar="P:N,N,...",
    multiple=True,
    help="One partition's nodes, the preferred leader first.",
)
@click.option("--cancel", is_flag=True, help="Cancel the moves.")
@click.option("--status", is_flag=True, help="Only show the moves.")
@click.option("--wait/--no-wait", default=True, help="Return when the moves are done. [default: wait]")
@timeout_option
@answer_options
def reassign(
    name: str,
    nodes: str | None,
    replication_factor: int | None,
    moves: tuple[str, ...],
    cancel: bool,
    status: bool,
    wait: bool,
    timeout: float | None,
    out: Output,
    rest: Rest,
) -> None:
    """Move a topic's replicas to other nodes.

    Readers and writers are not disturbed. Interrupting the command does not stop the moves: --cancel does. Exit code 5
    if they are not done within --timeout.
    """
    if [bool(nodes), bool(moves), cancel, status].count(True) != 1:
        raise click.UsageError("Give one of --nodes, --move, --cancel and --status.")
    if replication_factor is not None and not nodes:
        raise click.UsageError("--replication-factor goes with --nodes.")
    if status:
        rest.get("v1", "topics", name)  # exit code 3 if it does not exist
        _show_moves(current_moves(rest, name), out)
        return
    body: dict[str, Any] = {"cancel": True} if cancel else {"moves": [_move_of(text) for text in moves]}
    if nodes:
        body = {"nodes": _numbers(nodes, "--nodes")}
        if replication_factor is not None:
            body["replication_factor"] = replication_factor
    outcomes = rest.post("v1", "topics", name, "reassign", body=body)["outcomes"]
    refused = [outcome for outcome in outcomes if outcome["error"] is not None]
    for outcome in refused:
        click.echo(f"{name}-{outcome['partition']}: {outcome['error']['detail']}", err=True)
    if wait:
        wait_for_moves(rest, timeout, topic=name)
    _report(rest, name, outcomes, cancel=cancel, wait=wait, out=out)
    if refused:
        raise CommandError(f"{count_of(len(refused), 'partition')} of {name} were not moved.", Exit.FAILURE)


def _report(rest: Rest, name: str, outcomes: list[dict[str, Any]], *, cancel: bool, wait: bool, out: Output) -> None:
    if out.printed_json(rest.get("v1", "topics", name)):
        return
    count = count_of(sum(outcome["error"] is None for outcome in outcomes), "partition")
    if cancel:
        click.echo(f"Cancelled the moves of {count} of {name}.")
    elif wait:
        click.echo(f"Moved {count} of {name}.")
    else:
        click.echo(f"Moving {count} of {name}; `penstock topic reassign {name} --status` shows the progress.")


def _show_moves(rows: list[dict[str, Any]], out: Output) -> None:
    if not rows and out.is_table:
        click.echo("Nothing is moving.")
        return
    columns: dict[str, Column] = {
        "partition": "partition",
        "leader": "leader",
        "to": "replicas",
        "adding": "adding",
        "removing": "removing",
        "messages left": "messages_left",
        "left": lambda row: size_text(row["bytes_left"]),
    }
    out.rows(rows, columns)


def _move_of(text: str) -> dict[str, Any]:
    """A partition and its nodes, as ``0:1,2,3``."""
    partition, colon, nodes = text.partition(":")
    if not colon or not partition.isdecimal():
        raise click.UsageError(f"--move {text!r} is not PARTITION:NODE,NODE.")
    return {"partition": int(partition), "replicas": _numbers(nodes, "--move")}


def _numbers(text: str, option: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise click.UsageError(f"{option} {text!r} is not a list of node ids, such as 1,2,3.")
    return [int(word) for word in words]


_POLL_EVERY_S: Final = 0.5


def current_moves(rest: Rest, topic: str | None = None, node_id: int | None = None) -> list[dict[str, Any]]:
    """The partitions whose replicas move: all, those of a topic, or those that leave a node."""
    rows: list[dict[str, Any]] = rest.get("v1", "reassignments")["reassignments"]
    if topic is not None:
        rows = [row for row in rows if row["topic"] == topic]
    if node_id is not None:
        rows = [row for row in rows if node_id in row["removing"]]
    return rows


def wait_for_moves(
    rest: Rest, timeout_s: float | None, *, topic: str | None = None, node_id: int | None = None
) -> None:
    """Return when nothing moves any more; exit code 5 if that takes longer than ``timeout_s``."""
    started = time.monotonic()
    line = _ProgressLine()
    try:
        while rows := current_moves(rest, topic, node_id):
            line.show(rows)
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                raise CommandError(_still_moving(rest, rows, timeout_s), Exit.UNAVAILABLE)
            time.sleep(_POLL_EVERY_S)
    finally:
        line.clear()


_PLACES_TOLD: Final = 5


def _still_moving(rest: Rest, rows: list[dict[str, Any]], timeout_s: float) -> str:
    """What has not moved in time, and for which nodes it may wait."""
    places = [f"{row['topic']}-{row['partition']}" for row in rows]
    more = f" and {len(places) - _PLACES_TOLD} more" if len(places) > _PLACES_TOLD else ""
    told = f"Not done within {timeout_s:g} s: {', '.join(places[:_PLACES_TOLD])}{more} still moving."
    wanted = {node_id for row in rows for node_id in row["replicas"]}
    nodes = rest.get("v1", "nodes")["nodes"]
    away = [str(node["node_id"]) for node in nodes if node["status"] == "fenced" and node["node_id"] in wanted]
    if away:
        told += (
            f" Replicas of these belong on node {', '.join(away)}, which is away: where too few others are in sync, "
            "the move waits for it."
        )
    return f"{told} The moves go on in the background."


class _ProgressLine:
    """On a terminal, a line with what is left and how fast it moves."""

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
