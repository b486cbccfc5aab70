"""``penstock cluster``: the cluster looked at, grown, shrunk and balanced, over REST."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.moving import size_text, wait_for_moves
from penstock.cli.options import output_option, url_option
from penstock.cli.output import count_of, echo_json, echo_table, is_for_people
from penstock.cli.rest import Rest
from penstock.cli.scrub import scrub

_LOOK_EVERY_S: Final = 0.25

wait_option = click.option(
    "--wait/--no-wait", default=True, help="Return when the replicas have moved. [default: wait]"
)
timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer than this."
)


@click.group()
def cluster() -> None:
    """Look at the cluster; let nodes in and go, balance what they hold."""


cluster.add_command(scrub)


# -- looking -----------------------------------------------------------------------------------------------------------


@cluster.command()
@click.option(
    "--check", is_flag=True, help="Exit code 1 if a node is away, or a partition lacks a leader or a replica."
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait so long until the cluster is whole; exit code 5 if it is not by then.",
)
@output_option
@url_option
def status(check: bool, wait: float | None, output: str | None, url: str) -> None:
    """Show the quorum, the nodes, and what is lacking."""
    rest = Rest(url)
    found = rest.get("v1", "cluster") if wait is None else _wait_until_whole(rest, wait)
    if is_for_people(output):
        _show_status(found)
    else:
        echo_json(found)
    if check:
        lacking = _lacking(found)
        if lacking:
            raise CommandError(f"The cluster is not whole: {', '.join(lacking)}.")


def _wait_until_whole(rest: Rest, seconds: float) -> dict[str, Any]:
    """The status of a cluster to which every node has come that forms it, and which lacks nothing."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found: dict[str, Any] = rest.get("v1", "cluster")
            lacking = _lacking(found)
            if not lacking:
                return found
            reason = f"The cluster is not whole: {', '.join(lacking)}."
        except CommandError as error:
            if error.exit_code != Exit.UNAVAILABLE:
                raise
            reason = error.message
        if time.monotonic() > deadline:
            raise CommandError(f"Not ready within {seconds:g} s. {reason}", Exit.UNAVAILABLE)
        time.sleep(_LOOK_EVERY_S)


def _show_status(found: dict[str, Any]) -> None:
    controller = "no controller" if found["controller"] is None else f"controller {found['controller']}"
    click.echo(f"Cluster {found['cluster_id']}: {count_of(len(found['nodes']), 'node')}, {controller}")
    click.echo(
        f"{count_of(found['topics'], 'topic')}, {count_of(found['partitions'], 'partition')}: "
        f"{found['under_replicated']} under-replicated, {found['leaderless']} without a leader, "
        f"{found['moving']} moving"
    )
    for place in found["lossy_partitions"]:
        name = f"{place['topic']}-{place['partition']}"
        click.echo(f"{name} has lost records on every replica: see 'penstock topic describe {place['topic']}'.")
    click.echo()
    rows = [[row["node_id"], row["role"], _known(row["applied_index"]), _known(row["lag"])] for row in found["quorum"]]
    echo_table(("quorum", "role", "index", "behind"), rows)
    click.echo()
    _show_nodes(found["nodes"])


def _lacking(found: dict[str, Any]) -> list[str]:
    away = [str(node["node_id"]) for node in found["nodes"] if node["status"] == "fenced"]
    lacking = [] if found["controller"] is not None else ["there is no controller"]
    here = {node["node_id"] for node in found["nodes"]}
    expected = [str(voter["node_id"]) for voter in found["quorum"] if voter["node_id"] not in here]
    if expected:
        lacking.append(f"node {', '.join(expected)} has not come up yet")
    if away:
        lacking.append(f"node {', '.join(away)} is away")
    if found["leaderless"]:
        lacking.append(f"{count_of(found['leaderless'], 'partition')} without a leader")
    if found["under_replicated"]:
        lacking.append(f"{count_of(found['under_replicated'], 'partition')} under-replicated")
    return lacking


@cluster.command()
@output_option
@url_option
def nodes(output: str | None, url: str) -> None:
    """List the nodes; as JSON, one line each."""
    found = Rest(url).get("v1", "nodes")["nodes"]
    if is_for_people(output):
        _show_nodes(found)
    else:
        for node in found:
            echo_json(node)


def _show_nodes(found: list[dict[str, Any]]) -> None:
    columns = ("node", "status", "rack", "leads", "replicas", "data", "free", "kafka", "http")
    echo_table(
        columns,
        [
            [
                node["node_id"],
                node["status"],
                node["rack"] or "-",
                node["leaders"],
                node["replicas"],
                size_text(node["size_bytes"]),
                size_text(node["disk_free_bytes"]),
                _address(node, "kafka") or "-",
                _address(node, "http") or "-",
            ]
            for node in found
        ],
    )


def _address(node: dict[str, Any], door: str) -> str | None:
    for endpoint in node["endpoints"]:
        if endpoint["door"] == door:
            host = f"[{endpoint['host']}]" if ":" in endpoint["host"] else endpoint["host"]
            return f"{host}:{endpoint['port']}"
    return None


def _known(value: object) -> object:
    return "-" if value is None else value


# -- growing -----------------------------------------------------------------------------------------------------------


@cluster.command()
@click.argument("node_id", type=click.IntRange(min=0), required=False)
@click.option("--wait", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait so long for the node to come up.")
@output_option
@url_option
def join(node_id: int | None, wait: float | None, output: str | None, url: str) -> None:
    """Tell how to start a node that joins, or whether NODE_ID has joined.

    A node joins by being started with the internal address of any node of the cluster. Without NODE_ID the next free
    number is proposed. With --wait, exit code 5 if the node has not come up by then.
    """
    rest = Rest(url)
    found = rest.get("v1", "nodes")["nodes"]
    if node_id is None:
        node_id = max((node["node_id"] for node in found), default=0) + 1
    deadline = time.monotonic() + (wait or 0.0)
    while not _is_up(found, node_id) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        found = rest.get("v1", "nodes")["nodes"]
    has_joined = _is_up(found, node_id)
    words = [] if has_joined else _joining_command(found, node_id)
    if not is_for_people(output):
        echo_json({"node_id": node_id, "joined": has_joined, "command": words})
    elif has_joined:
        click.echo(f"Node {node_id} is part of the cluster.")
    else:
        click.echo(f"Node {node_id} is not part of the cluster now. Start it on its machine with")
        click.echo(f"\n  {' '.join(words)}\n\nand `penstock cluster rebalance` gives it its share.")
    if wait is not None and not has_joined:
        raise CommandError(f"Node {node_id} has not come up within {wait:g} s.", Exit.UNAVAILABLE)


def _is_up(found: list[dict[str, Any]], node_id: int) -> bool:
    return any(node["node_id"] == node_id and node["status"] != "fenced" for node in found)


def _joining_command(found: list[dict[str, Any]], node_id: int) -> list[str]:
    living = [node for node in found if node["status"] != "fenced" and node["node_id"] != node_id]
    address = next((at for node in living if (at := _address(node, "internal"))), None)
    if address is None:
        raise CommandError(
            "No node of this cluster can be joined: none has an address for other nodes. Start this one with "
            "--internal HOST:PORT first."
        )
    words = ["penstock", "serve", "--node-id", str(node_id), "--data-dir", f"/var/lib/penstock-{node_id}"]
    words += ["--kafka", "HOST:9092", "--http", "HOST:8080", "--internal", "HOST:9192", "--join", address]
    return words


# -- shrinking ---------------------------------------------------------------------------------------------------------


@cluster.command()
@click.argument("node_id", type=click.IntRange(min=0))
@click.option("--leaders-only", is_flag=True, help="Leave the replicas where they are, as before a restart.")
@wait_option
@timeout_option
@output_option
@url_option
def drain(node_id: int, leaders_only: bool, wait: bool, timeout: float | None, output: str | None, url: str) -> None:
    """Give what a node leads, and its replicas, to the others. It gets nothing new until `cluster resume`.

    Exit code 1 if replicas have nowhere to go, with what they are and what helps.
    """
    rest = Rest(url)
    plan = rest.post("v1", "nodes", str(node_id), "drain", body={"replicas": not leaders_only})
    if wait:
        wait_for_moves(rest, timeout, node_id=node_id)
    if not is_for_people(output):
        echo_json({**_node(rest, node_id), "stuck": plan["stuck"]})
        if plan["stuck"]:
            raise CommandError(_stuck_text(node_id, plan["stuck"]))
        return
    moves = count_of(len(plan["moves"]), "partition")
    if leaders_only:
        click.echo(f"Node {node_id} gives up what it leads.")
    elif plan["stuck"]:
        done = "have moved" if wait else "are on their way to others"
        click.echo(f"{moves} of node {node_id} {done}.")
        raise CommandError(_stuck_text(node_id, plan["stuck"]))
    else:
        click.echo(
            f"Node {node_id} is empty now." if wait else f"{moves} of node {node_id} are on their way to others."
        )


def _stuck_text(node_id: int, stuck: list[dict[str, Any]]) -> str:
    """What stays on a node that is drained, why, and what helps."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for each in stuck:
        topics.setdefault(each["topic"], []).append(each)
    lines = [f"  {topic} ({count_of(len(rows), 'partition')}): {rows[0]['reason']}" for topic, rows in topics.items()]
    return "\n".join(
        (
            f"{count_of(len(stuck), 'replica')} cannot leave node {node_id}:",
            *lines,
            "Add a node and drain again, or keep fewer replicas: `penstock topic reassign TOPIC --nodes N,N -r 2`",
            f"with the nodes that stay. `penstock cluster remove {node_id} --force` lets the node go as it is:",
            "these partitions then have one replica less.",
        )
    )


@cluster.command()
@click.argument("node_id", type=click.IntRange(min=0))
@output_option
@url_option
def resume(node_id: int, output: str | None, url: str) -> None:
    """Use a node again that was drained."""
    rest = Rest(url)
    rest.post("v1", "nodes", str(node_id), "resume", body=None)
    if is_for_people(output):
        click.echo(f"Node {node_id} is used again; `penstock cluster rebalance` gives it its share.")
    else:
        echo_json(_node(rest, node_id))


@cluster.command()
@click.argument("node_id", type=click.IntRange(min=0))
@click.option("--force", is_flag=True, help="Although it has replicas, which are as many fewer then.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@url_option
def remove(node_id: int, force: bool, yes: bool, url: str) -> None:
    """Let a node go for good. Drain it first: exit code 4 while it has replicas."""
    if not yes:
        if not sys.stdin.isatty():
            raise CommandError("Removing cannot be undone; without a terminal to ask on, say --yes.", Exit.USAGE)
        click.confirm(f"Remove node {node_id} from the cluster for good?", abort=True)
    Rest(url).delete("v1", "nodes", str(node_id), force="true" if force else None)
    click.echo(f"Removed node {node_id}. Stop it if it still runs.", err=True)


# -- balancing ---------------------------------------------------------------------------------------------------------


@cluster.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@wait_option
@timeout_option
@output_option
@url_option
def rebalance(dry_run: bool, wait: bool, timeout: float | None, output: str | None, url: str) -> None:
    """Spread replicas and leaders evenly over nodes and racks."""
    rest = Rest(url)
    plan = rest.post("v1", "cluster", "rebalance", body={"dry_run": dry_run})
    if wait and not dry_run:
        wait_for_moves(rest, timeout)
    if not is_for_people(output):
        echo_json(plan)
        return
    moves = plan["moves"]
    if not moves:
        click.echo("Everything is where it should be.")
    elif dry_run:
        echo_table(
            ("topic", "partition", "to"),
            [[move["topic"], move["partition"], ",".join(map(str, move["replicas"]))] for move in moves],
        )
    else:
        done = "Moved" if wait else "Began to move"
        click.echo(f"{done} {count_of(len(moves), 'partition')}.")


@cluster.command()
@click.argument("node_id", type=click.IntRange(min=0), required=False)
@output_option
@url_option
def transfer(node_id: int | None, output: str | None, url: str) -> None:
    """Hand the lead of the quorum to NODE_ID, or to any other voter."""
    result = Rest(url).post("v1", "cluster", "transfer", body={"node_id": node_id})
    if is_for_people(output):
        leader = result["controller"]
        click.echo("The lead is being handed over." if leader is None else f"Node {leader} leads the quorum.")
    else:
        echo_json(result)


def _node(rest: Rest, node_id: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = rest.get("v1", "nodes")["nodes"]
    return next((node for node in found if node["node_id"] == node_id), {"node_id": node_id})
