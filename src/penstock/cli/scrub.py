"""``penstock cluster scrub``: what the nodes have read again of their disks, and the order to do it now."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.moving import size_text
from penstock.cli.options import output_option, url_option
from penstock.cli.output import echo_json, echo_table, is_for_people
from penstock.cli.rest import Rest

_LOOK_EVERY_S: Final = 0.25


@click.command()
@click.option("--now", is_flag=True, help="Have every node check everything it keeps, whatever it checked before.")
@click.option("--wait/--no-wait", default=True, help="With --now: return when all have done so. [default: wait]")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer than this.")
@output_option
@url_option
def scrub(now: bool, wait: bool, timeout: float | None, output: str | None, url: str) -> None:
    """Show what the scrub of each node has found; as JSON, one line each.

    Exit code 1 if a node keeps a damaged replica; 5 if --timeout is over.
    """
    nodes = _nodes(Rest(url))
    found = [rest.post("v1", "storage", "scrub", body=None) for rest in nodes] if now else _ask(nodes)
    if now and wait:
        found = _wait_for(nodes, [node["asked_round"] for node in found], timeout)
    if is_for_people(output):
        _show(found)
    else:
        for node in found:
            echo_json(node)
    damaged = [str(node["node_id"]) for node in found if node["damaged_partitions"]]
    if damaged:
        raise CommandError(
            f"Node {', '.join(damaged)} keeps damaged replicas. They are copied anew where others have them; its "
            "/readyz and `penstock log inspect` tell which."
        )


def _nodes(rest: Rest) -> list[Rest]:
    """A way to each node that is up."""
    found: list[Rest] = []
    for node in rest.get("v1", "nodes")["nodes"]:
        address = next((each for each in node["endpoints"] if each["door"] == "http"), None)
        if node["status"] != "fenced" and address is not None:
            host = f"[{address['host']}]" if ":" in address["host"] else address["host"]
            found.append(Rest(f"http://{host}:{address['port']}"))
    return found


def _ask(nodes: list[Rest]) -> list[dict[str, Any]]:
    return [rest.get("v1", "storage", "scrub") for rest in nodes]


def _wait_for(nodes: list[Rest], rounds: list[int], timeout: float | None) -> list[dict[str, Any]]:
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        found = _ask(nodes)
        if all(node["completed_round"] >= asked for node, asked in zip(found, rounds, strict=True)):
            return found
        if deadline is not None and time.monotonic() > deadline:
            raise CommandError(f"The scrub has not ended within {timeout:g} s; it goes on.", Exit.UNAVAILABLE)
        time.sleep(_LOOK_EVERY_S)


def _show(found: list[dict[str, Any]]) -> None:
    echo_table(
        ("node", "state", "last round ended", "checked", "damage found", "unreadable", "damaged now"),
        [
            [
                node["node_id"],
                "running" if node["is_running"] else "idle" if node["is_on"] else "off",
                _moment(node["completed_at_ms"]),
                size_text(node["checked_bytes"]),
                node["damaged_segments"],
                node["unreadable_segments"],
                node["damaged_partitions"],
            ]
            for node in found
        ],
    )


def _moment(time_ms: int | None) -> str:
    return "-" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
