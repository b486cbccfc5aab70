"""``penstock queue lanes``: what waits in each lane of a queue, and what was served of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import click

from penstock.cli.names import queue_group_names, topic_names
from penstock.cli.options import output_option, url_option
from penstock.cli.output import echo_json, echo_table, is_for_people, printable
from penstock.cli.rest import Rest
from penstock.cli.spans import span_text

_HEADS: Final = ("lane", "weight", "ready", "in flight", "served", "per second", "last served", "oldest")


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("-g", "--group", shell_complete=queue_group_names, help="Only this group, with its partitions.")
@output_option
@url_option
def lanes(topic: str, group: str | None, output: str | None, url: str) -> None:
    """Show the lanes of TOPIC's queue groups: what is ready and in flight, and what was served lately."""
    query: dict[str, Any] = {} if group is None else {"group": group}
    found = Rest(url).get("v1", "queues", topic, "lanes", **query)["groups"]
    for each in found:
        if not is_for_people(output):
            echo_json({"topic": topic, **each})
        elif not each["is_on"]:
            click.echo(f"Group {printable(each['group'])} of {topic} has no lanes: set {topic} queue.lanes=on.")
        else:
            _show(topic, each, has_partitions=group is not None)


def _show(topic: str, group: dict[str, Any], *, has_partitions: bool) -> None:
    fair = f", fair by {printable(group['fair_by'])}" if group["fair_by"] else ""
    unseen = f", {group['unseen']:,} not looked at yet" if group["unseen"] else ""
    click.echo(f"Group {printable(group['group'])} of {topic}{fair}{unseen}")
    weights = group["weights"]
    if has_partitions and len(group["partitions"]) > 1:
        rows = [[part["partition"], *_row(lane, weights)] for part in group["partitions"] for lane in part["lanes"]]
        echo_table(("partition", *_HEADS), rows)
    else:
        echo_table(_HEADS, [_row(lane, weights) for lane in group["lanes"]])


def _row(lane: dict[str, Any], weights: dict[str, int]) -> list[object]:
    rate = f"{lane['served_per_second']:,.1f}"
    ages = [_age_ms(lane["last_served"]), lane["oldest_age_ms"]]
    counts = [lane["ready"], lane["in_flight"], lane["served"], rate]
    return [lane["lane"], weights[lane["lane"]], *counts, *map(span_text, ages)]


def _age_ms(moment: str | None) -> int | None:
    if moment is None:
        return None
    return max(0, int((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds() * 1000))
