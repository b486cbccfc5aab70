"""``penstock cluster``: the cluster's state, its nodes added, drained and removed, replicas balanced and scrubbed."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final

import click

from penstock.cli.configs import change_options, show_or_change
from penstock.cli.exits import CommandError, Exit
from penstock.cli.moves import wait_for_moves
from penstock.cli.options import answer_options, confirm, node_id_argument, timeout_option, url_option, yes_option
from penstock.cli.output import Column, Output, Row, count_of, echo_json, echo_rows, size_text
from penstock.cli.rest import Rest

_POLL_EVERY_S: Final = 0.25

wait_option = click.option(
    "--wait/--no-wait", default=True, help="Return when the replicas have moved. [default: wait]"
)


@click.group()
def cluster() -> None:
    """Show the cluster, add and remove nodes, balance replicas."""


# -- status ------------------------------------------------------------------------------------------------------------


@cluster.command()
@click.option(
    "--check", is_flag=True, help="Exit code 1 if a node is down, or a partition lacks a leader or a replica."
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait this long for the cluster to be complete; exit code 5 if it is not by then.",
)
@answer_options
def status(check: bool, wait: float | None, out: Output, rest: Rest) -> None:
    """Show the quorum, the nodes, and what is missing."""
    found = rest.get("v1", "cluster") if wait is None else _wait_until_complete(rest, wait)
    if out.is_table:
        _show_status(found)
    else:
        echo_json(found)
    if check:
        missing = _missing(found)
        if missing:
            raise CommandError(f"The cluster is not complete: {', '.join(missing)}.")


def _wait_until_complete(rest: Rest, seconds: float) -> dict[str, Any]:
    """The status of the cluster once every node is up and nothing is missing."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found: dict[str, Any] = rest.get("v1", "cluster")
            missing = _missing(found)
            if not missing:
                return found
            reason = f"The cluster is not complete: {', '.join(missing)}."
        except CommandError as error:
            if error.exit_code != Exit.UNAVAILABLE:
                raise
            reason = error.message
        if time.monotonic() > deadline:
            raise CommandError(f"Not ready within {seconds:g} s. {reason}", Exit.UNAVAILABLE)
        time.sleep(_POLL_EVERY_S)


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
        click.echo(f"{name} has lost records on every replica: see `penstock topic describe {place['topic']}`.")
    click.echo()
    columns = {"quorum": "node_id", "role": "role", "index": "applied_index", "behind": "lag"}
    echo_rows(found["quorum"], columns)
    click.echo()
    echo_rows(found["nodes"], _NODE_COLUMNS)


def _missing(found: dict[str, Any]) -> list[str]:
    away = [str(node["node_id"]) for node in found["nodes"] if node["status"] == "fenced"]
    missing = [] if found["controller"] is not None else ["there is no controller"]
    here = {node["node_id"] for node in found["nodes"]}
    expected = [str(voter["node_id"]) for voter in found["quorum"] if voter["node_id"] not in here]
    if expected:
        missing.append(f"node {', '.join(expected)} has not come up yet")
    if away:
        missing.append(f"node {', '.join(away)} is away")
    if found["leaderless"]:
        missing.append(f"{count_of(found['leaderless'], 'partition')} without a leader")
    if found["under_replicated"]:
        missing.append(f"{count_of(found['under_replicated'], 'partition')} under-replicated")
    return missing


@cluster.command()
@answer_options
def nodes(out: Output, rest: Rest) -> None:
    """List the nodes; as JSON, one line each."""
    found = rest.get("v1", "nodes")["nodes"]
    out.rows(found, _NODE_COLUMNS)


@cluster.command()
@click.argument("node_id", type=click.IntRange(min=0), required=False)
@change_options
@answer_options
def config(node_id: int | None, configs: tuple[str, ...], unset: tuple[str, ...], out: Output, rest: Rest) -> None:
    """Show or change the settings of NODE_ID; without NODE_ID, those set for all nodes.

    A change takes effect at once: all of those given, or none if one is wrong. What a node was started with is shown,
    and changes with its file.
    """
    at = ("v1", "cluster") if node_id is None else ("v1", "nodes", str(node_id))
    show_or_change(rest, (*at, "configs"), configs, unset, out)


def _address(node: Row, door: str) -> str | None:
    for endpoint in node["endpoints"]:
        if endpoint["door"] == door:
            host = f"[{endpoint['host']}]" if ":" in endpoint["host"] else endpoint["host"]
            return f"{host}:{endpoint['port']}"
    return None


_NODE_COLUMNS: Final[dict[str, Column]] = {
    "node": "node_id",
    "status": "status",
    "rack": lambda node: node["rack"] or "-",
    "leads": "leaders",
    "replicas": "replicas",
    "data": lambda node: size_text(node["size_bytes"]),
    "free": lambda node: size_text(node["disk_free_bytes"]),
    "kafka": lambda node: _address(node, "kafka"),
    "http": lambda node: _address(node, "http"),
}


# -- joining -----------------------------------------------------------------------------------------------------------


@cluster.command()
@click.argument("node_id", type=click.IntRange(min=0), required=False)
@click.option("--wait", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait this long for the node to come up.")
@answer_options
def join(node_id: int | None, wait: float | None, out: Output, rest: Rest) -> None:
    """Show how to start a node that joins, or whether NODE_ID has joined.

    A node joins by being started with the internal address of any node of the cluster. Without NODE_ID the next free
    id is proposed. With --wait, exit code 5 if the node has not come up by then.
    """
    found = rest.get("v1", "nodes")["nodes"]
    if node_id is None:
        node_id = max((node["node_id"] for node in found), default=0) + 1
    deadline = time.monotonic() + (wait or 0.0)
    while not _is_up(found, node_id) and time.monotonic() < deadline:
        time.sleep(_POLL_EVERY_S)
        found = rest.get("v1", "nodes")["nodes"]
    has_joined = _is_up(found, node_id)
    words = [] if has_joined else _joining_command(found, node_id)
    if not out.is_table:
        echo_json({"node_id": node_id, "joined": has_joined, "command": words})
    elif has_joined:
        click.echo(f"Node {node_id} is part of the cluster.")
    else:
        click.echo(f"Node {node_id} is not part of the cluster now. Start it on its machine with")
        click.echo(f"\n  {' '.join(words)}\n\nand run `penstock cluster rebalance` to give it its share.")
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


# -- draining and removing ---------------------------------------------------------------------------------------------


@cluster.command()
@node_id_argument
@click.option("--leaders-only", is_flag=True, help="Keep the replicas where they are, for a restart.")
@wait_option
@timeout_option
@answer_options
def drain(node_id: int, leaders_only: bool, wait: bool, timeout: float | None, out: Output, rest: Rest) -> None:
    """Move a node's leaderships and replicas to other nodes. It gets no new ones until `cluster resume`.

    Exit code 1 if replicas have nowhere to go, with a list of them and what helps.
    """
    plan = rest.post("v1", "nodes", str(node_id), "drain", body={"replicas": not leaders_only})
    if wait:
        wait_for_moves(rest, timeout, node_id=node_id)
    if not out.is_table:
        echo_json({**_node(rest, node_id), "stuck": plan["stuck"]})
        if plan["stuck"]:
            raise CommandError(_stuck_text(node_id, plan["stuck"]))
        return
    moves = count_of(len(plan["moves"]), "partition")
    if leaders_only:
        click.echo(f"Node {node_id} hands over its leaderships.")
    elif plan["stuck"]:
        done = "have moved" if wait else "are moving to other nodes"
        click.echo(f"{moves} of node {node_id} {done}.")
        raise CommandError(_stuck_text(node_id, plan["stuck"]))
    else:
        click.echo(f"Node {node_id} is empty now." if wait else f"{moves} of node {node_id} are moving to other nodes.")


def _stuck_text(node_id: int, stuck: list[dict[str, Any]]) -> str:
    """Which replicas stay on a drained node, why, and what helps."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for each in stuck:
        topics.setdefault(each["topic"], []).append(each)
    lines = [f"  {topic} ({count_of(len(rows), 'partition')}): {rows[0]['reason']}" for topic, rows in topics.items()]
    return "\n".join(
        (
            f"{count_of(len(stuck), 'replica')} cannot leave node {node_id}:",
            *lines,
            "Add a node and drain again, or keep fewer replicas: `penstock topic reassign TOPIC --nodes N,N -r 2`",
            f"with the nodes that stay. `penstock cluster remove {node_id} --force` removes the node as it is: these",
            "partitions then have one replica less.",
        )
    )


@cluster.command()
@node_id_argument
@answer_options
def resume(node_id: int, out: Output, rest: Rest) -> None:
    """Use a drained node again."""
    rest.post("v1", "nodes", str(node_id), "resume", body=None)
    if out.is_table:
        click.echo(f"Node {node_id} is in use again; `penstock cluster rebalance` gives it its share.")
    else:
        echo_json(_node(rest, node_id))


@cluster.command()
@node_id_argument
@click.option("--force", is_flag=True, help="Remove it even if it has replicas; their partitions then have fewer.")
@yes_option
@url_option
def remove(node_id: int, force: bool, yes: bool, rest: Rest) -> None:
    """Remove a node for good. Drain it first: exit code 4 while it has replicas."""
    confirm(f"Remove node {node_id} from the cluster for good?", is_sure=yes)
    rest.delete("v1", "nodes", str(node_id), force="true" if force else None)
    click.echo(f"Removed node {node_id}. Stop it if it still runs.", err=True)


# -- balancing ---------------------------------------------------------------------------------------------------------


@cluster.command()
@click.option("--dry-run", is_flag=True, help="Only show what would move.")
@wait_option
@timeout_option
@answer_options
def rebalance(dry_run: bool, wait: bool, timeout: float | None, out: Output, rest: Rest) -> None:
    """Spread replicas and leaders evenly over nodes and racks."""
    plan = rest.post("v1", "cluster", "rebalance", body={"dry_run": dry_run})
    if wait and not dry_run:
        wait_for_moves(rest, timeout)
    if out.printed_json(plan):
        return
    moves = plan["moves"]
    if not moves:
        click.echo("The cluster is balanced.")
    elif dry_run:
        echo_rows(moves, {"topic": "topic", "partition": "partition", "to": "replicas"})
    else:
        done = "Moved" if wait else "Began to move"
        click.echo(f"{done} {count_of(len(moves), 'partition')}.")


@cluster.command()
@click.argument("node_id", type=click.IntRange(min=0), required=False)
@answer_options
def transfer(node_id: int | None, out: Output, rest: Rest) -> None:
    """Transfer the leadership of the quorum to NODE_ID, or to any other voter."""
    result = rest.post("v1", "cluster", "transfer", body={"node_id": node_id})
    leader = result["controller"]
    done = "The leadership is being transferred." if leader is None else f"Node {leader} leads the quorum."
    out.done(result, done)


def _node(rest: Rest, node_id: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = rest.get("v1", "nodes")["nodes"]
    return next((node for node in found if node["node_id"] == node_id), {"node_id": node_id})


# -- scrubbing ---------------------------------------------------------------------------------------------------------


@cluster.command()
@click.option("--now", is_flag=True, help="Make every node check all its data now.")
@click.option("--wait/--no-wait", default=True, help="With --now: return when all nodes are done. [default: wait]")
@timeout_option
@answer_options
def scrub(now: bool, wait: bool, timeout: float | None, out: Output, rest: Rest) -> None:
    """Show what the scrub of each node, the check of its disks, has found; as JSON, one line each.

    Exit code 1 if a node has a damaged replica; 5 after --timeout.
    """
    nodes = _each_node(rest)
    found = [rest.post("v1", "storage", "scrub", body=None) for rest in nodes] if now else _scrubs(nodes)
    if now and wait:
        found = _wait_for_scrubs(nodes, [node["asked_round"] for node in found], timeout)
    out.rows(found, _SCRUB_COLUMNS)
    damaged = [str(node["node_id"]) for node in found if node["damaged_partitions"]]
    if damaged:
        raise CommandError(
            f"Node {', '.join(damaged)} has damaged replicas. They are copied again from intact ones, if there "
            "are any; its /readyz and `penstock log inspect` show which."
        )


def _each_node(rest: Rest) -> list[Rest]:
    """Every node that is up."""
    nodes = [node for node in rest.get("v1", "nodes")["nodes"] if node["status"] != "fenced"]
    urls = [f"{rest.scheme}://{address}" for node in nodes if (address := _address(node, "http"))]
    return [Rest(url, trust=rest.trust, login=rest.login) for url in urls]


def _scrubs(nodes: list[Rest]) -> list[dict[str, Any]]:
    return [rest.get("v1", "storage", "scrub") for rest in nodes]


def _wait_for_scrubs(nodes: list[Rest], rounds: list[int], timeout: float | None) -> list[dict[str, Any]]:
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        found = _scrubs(nodes)
        if all(node["completed_round"] >= asked for node, asked in zip(found, rounds, strict=True)):
            return found
        if deadline is not None and time.monotonic() > deadline:
            raise CommandError(
                f"The scrub has not ended within {timeout:g} s; it goes on in the background.", Exit.UNAVAILABLE
            )
        time.sleep(_POLL_EVERY_S)


_SCRUB_COLUMNS: Final[dict[str, Column]] = {
    "node": "node_id",
    "state": lambda node: "running" if node["is_running"] else "idle" if node["is_on"] else "off",
    "last round ended": lambda node: _time(node["completed_at_ms"]),
    "checked": lambda node: size_text(node["checked_bytes"]),
    "damage found": "damaged_segments",
    "unreadable": "unreadable_segments",
    "damaged now": "damaged_partitions",
}


def _time(time_ms: int | None) -> str:
    return "-" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
