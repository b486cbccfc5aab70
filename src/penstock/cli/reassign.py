"""``penstock topic reassign``: a topic's replicas sent to other nodes, and watched on their way."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.moving import moves_under_way, size_text, wait_for_moves
from penstock.cli.names import topic_names
from penstock.cli.options import output_option, url_option
from penstock.cli.output import count_of, echo_json, echo_table, is_for_people
from penstock.cli.rest import Rest


@click.command()
@click.argument("name", shell_complete=topic_names)
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
@click.option("--cancel", is_flag=True, help="Call off what is moving.")
@click.option("--status", is_flag=True, help="Only show what is moving.")
@click.option("--wait/--no-wait", default=True, help="Return when everything has arrived. [default: wait]")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer than this.")
@output_option
@url_option
def reassign(
    name: str,
    nodes: str | None,
    replication_factor: int | None,
    moves: tuple[str, ...],
    cancel: bool,
    status: bool,
    wait: bool,
    timeout: float | None,
    output: str | None,
    url: str,
) -> None:
    """Move a topic's replicas to other nodes.

    Readers and writers go on meanwhile. Interrupting the command does not stop the move: --cancel does. Exit code 5 if
    it has not arrived within --timeout.
    """
    if [bool(nodes), bool(moves), cancel, status].count(True) != 1:
        raise click.UsageError("Give one of --nodes, --move, --cancel and --status.")
    if replication_factor is not None and not nodes:
        raise click.UsageError("--replication-factor goes with --nodes.")
    rest = Rest(url)
    if status:
        rest.get("v1", "topics", name)  # or it is not found
        _show(moves_under_way(rest, name), output)
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
    _tell(rest, name, outcomes, cancel=cancel, wait=wait, output=output)
    if refused:
        raise CommandError(f"{count_of(len(refused), 'partition')} of {name} were not moved.", Exit.FAILURE)


def _tell(
    rest: Rest, name: str, outcomes: list[dict[str, Any]], *, cancel: bool, wait: bool, output: str | None
) -> None:
    if not is_for_people(output):
        echo_json(rest.get("v1", "topics", name))
        return
    count = count_of(sum(outcome["error"] is None for outcome in outcomes), "partition")
    if cancel:
        click.echo(f"Called off the moves of {count} of {name}.")
    elif wait:
        click.echo(f"Moved {count} of {name}.")
    else:
        click.echo(f"{count} of {name} are on their way; `penstock topic reassign {name} --status` tells how far.")


def _show(rows: list[dict[str, Any]], output: str | None) -> None:
    if not is_for_people(output):
        for row in rows:
            echo_json(row)
        return
    if not rows:
        click.echo("Nothing is moving.")
        return
    columns = ("partition", "leader", "to", "adding", "removing", "messages left", "left")
    echo_table(
        columns,
        [
            [
                row["partition"],
                row["leader"],
                _joined(row["replicas"]),
                _joined(row["adding"]),
                _joined(row["removing"]),
                "-" if row["messages_left"] is None else row["messages_left"],
                size_text(row["bytes_left"]),
            ]
            for row in rows
        ],
    )


def _joined(node_ids: list[int]) -> str:
    return ",".join(map(str, node_ids)) or "-"


def _move_of(text: str) -> dict[str, Any]:
    """A partition and its nodes, as ``0:1,2,3``."""
    partition, colon, nodes = text.partition(":")
    if not colon or not partition.isdecimal():
        raise click.UsageError(f"--move {text!r} is not PARTITION:NODE,NODE.")
    return {"partition": int(partition), "replicas": _numbers(nodes, "--move")}


def _numbers(text: str, option: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise click.UsageError(f"{option} {text!r} is not a list of node numbers, such as 1,2,3.")
    return [int(word) for word in words]
