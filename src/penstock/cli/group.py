"""``penstock group``: consumer groups looked at, moved and deleted, over REST."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.moments import Moment
from penstock.cli.names import group_names, topic_names
from penstock.cli.options import output_option, url_option
from penstock.cli.output import count_of, echo_json, echo_table, is_for_people
from penstock.cli.rest import RefusedError, Rest

_OFFSET_COLUMNS: Final = {
    "topic": "topic",
    "partition": "partition",
    "committed_offset": "committed",
    "high_watermark": "end",
    "lag": "lag",
    "member_id": "member",
}
_MOVE_COLUMNS: Final = {"topic": "topic", "partition": "partition", "from_offset": "from", "to_offset": "to"}


@click.group()
def group() -> None:
    """List, describe, move and delete consumer groups."""


@group.command("list")
@output_option
@url_option
def list_groups(output: str | None, url: str) -> None:
    """List groups; as JSON, one line each."""
    groups = Rest(url).get("v1", "groups")["groups"]
    if is_for_people(output):
        columns = ("group", "kind", "state", "protocol", "members", "lag")
        echo_table(columns, [[_cell(found[column]) for column in columns] for found in groups])
    else:
        for found in groups:
            echo_json(found)


@group.command()
@click.argument("name", shell_complete=group_names)
@output_option
@url_option
def describe(name: str, output: str | None, url: str) -> None:
    """Show a group with its members, offsets and lag. Exit code 3 if there is none of that name."""
    _show(Rest(url).get("v1", "groups", name), output)


@group.command()
@click.argument("name", shell_complete=group_names)
@click.option("--max", "lag_max", type=click.IntRange(min=0), help="Exit code 1 if the lag is above this.")
@url_option
def lag(name: str, lag_max: int | None, url: str) -> None:
    """Print how many messages a group is behind, in all."""
    behind: int = Rest(url).get("v1", "groups", name)["lag"]
    click.echo(behind)
    if lag_max is not None and behind > lag_max:
        raise CommandError(f"Group {name} is {behind} messages behind, more than {lag_max}.")


@group.command()
@click.argument("name", shell_complete=group_names)
@click.argument("topic", shell_complete=topic_names)
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only these.")
@click.option("--to", metavar="WHERE", help="An offset, earliest, or latest.")
@click.option("--since", type=Moment(), help="A time such as 2026-01-31T12:00:00Z, or 2h for two hours ago.")
@click.option("--shift", type=int, metavar="N", help="N messages on from where the group is; -N goes back.")
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@click.option("-y", "--yes", is_flag=True, help="Begin a group that is not there without asking.")
@output_option
@url_option
def reset(
    name: str,
    topic: str,
    partitions: tuple[int, ...],
    to: str | None,
    since: datetime | None,
    shift: int | None,
    dry_run: bool,
    yes: bool,
    output: str | None,
    url: str,
) -> None:
    """Move a group's offsets in TOPIC. The group must have no members; exit code 4 if it has.

    Asks before it begins a group that is not there.
    """
    if [to, since, shift].count(None) != 2:
        raise click.UsageError("Give one of --to, --since and --shift.")
    body: dict[str, Any] = {"topic": topic, "dry_run": dry_run, "create": yes or dry_run}
    if partitions:
        body["partitions"] = list(partitions)
    if since is not None:
        body["since"] = since.isoformat()
    elif shift is not None:
        body["shift"] = shift
    else:
        body["to"] = int(to) if to is not None and to.isdigit() else to
    result = _reset(Rest(url), name, body)
    if dry_run and is_for_people(output):
        click.echo(f"Group {name} would be moved:")
        echo_table(tuple(_MOVE_COLUMNS.values()), [[_cell(row[at]) for at in _MOVE_COLUMNS] for row in result["moves"]])
    else:
        _show(result, output)


def _reset(rest: Rest, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Move offsets; a group that is not there is begun if a person says so."""
    try:
        moved: dict[str, Any] = rest.post("v1", "groups", name, "reset", body=body)
    except RefusedError as error:
        if error.code != "group_not_found":
            raise
        if not sys.stdin.isatty():
            raise CommandError(
                f"There is no group {name}. Check the name, or say --yes to begin one.", Exit.USAGE
            ) from None
        click.confirm(f"There is no group {name}. Begin one?", abort=True, err=True)
        moved = rest.post("v1", "groups", name, "reset", body={**body, "create": True})
    return moved


@group.command("delete-offsets")
@click.argument("name", shell_complete=group_names)
@click.argument("targets", metavar="TOPIC[:PARTITION,...]...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
@url_option
def delete_offsets(name: str, targets: tuple[str, ...], yes: bool, output: str | None, url: str) -> None:
    """Forget where a group is in a topic, or in some of its partitions, such as orders:0,2.

    The topic need not exist any more. Exit code 4 if a member of the group reads it.
    """
    wanted = [_target_of(text) for text in targets]
    if not yes:
        _confirm(f"Delete the offsets of group {name} in {', '.join(targets)}?")
    rest = Rest(url)
    deleted = [
        place
        for topic, partitions in wanted
        for place in rest.delete("v1", "groups", name, "offsets", topic=topic, partitions=partitions)["deleted"]
    ]
    if is_for_people(output):
        echo_table(("topic", "partition"), [[place["topic"], place["partition"]] for place in deleted])
    else:
        echo_json({"group": name, "deleted": deleted})
    click.echo(f"Deleted the offsets of {count_of(len(deleted), 'partition')} from group {name}.", err=True)


def _target_of(text: str) -> tuple[str, str | None]:
    """A topic and a list of partitions, as `TOPIC` or `TOPIC:0,2`."""
    topic, colon, partitions = text.partition(":")
    if not topic or (colon and not all(index.isdecimal() for index in partitions.split(","))):
        raise click.UsageError(f"{text!r} is not TOPIC or TOPIC:PARTITION,PARTITION.")
    return topic, partitions if colon else None


@group.command()
@click.argument("name", shell_complete=group_names)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@url_option
def delete(name: str, yes: bool, url: str) -> None:
    """Forget a group without members, and its offsets. Exit code 4 if it has members."""
    if not yes:
        _confirm(f"Delete group {name} and its offsets?")
    Rest(url).delete("v1", "groups", name)
    click.echo(f"Deleted group {name}.", err=True)


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise CommandError("Deleting cannot be undone; without a terminal to ask on, say --yes.", Exit.USAGE)
    click.confirm(question, abort=True)


def _show(detail: dict[str, Any], output: str | None) -> None:
    if not is_for_people(output):
        echo_json(detail)
        return
    members = count_of(detail["members"], "member")
    click.echo(f"Group {detail['group']} ({detail['kind']}): {detail['state']}, {members}, lag {detail['lag']}")
    rows = [[_cell(row[column]) for column in _OFFSET_COLUMNS] for row in detail["offsets"]]
    echo_table(tuple(_OFFSET_COLUMNS.values()), rows)


def _cell(value: object) -> object:
    return "-" if value is None else value
