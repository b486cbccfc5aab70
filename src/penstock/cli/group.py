"""``penstock group``: consumer groups listed, moved and deleted, over REST."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any, Final

import click

from penstock.cli.configs import change_options, show_or_change
from penstock.cli.exits import CommandError, Exit
from penstock.cli.options import answer_options, confirm, group_name_argument, topic_argument, url_option, yes_option
from penstock.cli.output import Output, count_of, echo_json, echo_rows
from penstock.cli.rest import RefusedError, Rest
from penstock.cli.times import PastTime

_GROUP_COLUMNS: Final = {name: name for name in ("group", "kind", "state", "protocol", "members", "lag")}
_OFFSET_COLUMNS: Final = {
    "topic": "topic",
    "partition": "partition",
    "committed": "committed_offset",
    "end": "high_watermark",
    "lag": "lag",
    "member": "member_id",
}
_MOVE_COLUMNS: Final = {"topic": "topic", "partition": "partition", "from": "from_offset", "to": "to_offset"}


@click.group()
def group() -> None:
    """List, describe, configure, move and delete consumer groups."""


@group.command("list")
@answer_options
def list_groups(out: Output, rest: Rest) -> None:
    """List groups; as JSON, one line each."""
    out.rows(rest.get("v1", "groups")["groups"], _GROUP_COLUMNS)


@group.command()
@group_name_argument
@answer_options
def describe(name: str, out: Output, rest: Rest) -> None:
    """Show a group with its members, offsets and lag. Exit code 3 if it does not exist."""
    _show(rest.get("v1", "groups", name), out)


@group.command()
@group_name_argument
@click.option("--max", "lag_max", type=click.IntRange(min=0), help="Exit code 1 if the lag is above this.")
@url_option
def lag(name: str, lag_max: int | None, rest: Rest) -> None:
    """Print how many messages a group is behind, in all."""
    behind: int = rest.get("v1", "groups", name)["lag"]
    click.echo(behind)
    if lag_max is not None and behind > lag_max:
        raise CommandError(f"Group {name} is {behind} messages behind, more than {lag_max}.")


@group.command()
@group_name_argument
@topic_argument
@click.option("-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only these.")
@click.option("--to", metavar="WHERE", help="An offset, earliest, or latest.")
@click.option("--since", type=PastTime(), help="A time such as 2026-01-31T12:00:00Z, or 2h for two hours ago.")
@click.option("--shift", type=int, metavar="N", help="N messages forward from where the group is; -N goes back.")
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@click.option("-y", "--yes", is_flag=True, help="Create the group without asking if it does not exist.")
@answer_options
def reset(
    name: str,
    topic: str,
    partitions: tuple[int, ...],
    to: str | None,
    since: datetime | None,
    shift: int | None,
    dry_run: bool,
    yes: bool,
    out: Output,
    rest: Rest,
) -> None:
    """Move a group's offsets in TOPIC. The group must have no members; exit code 4 if it has.

    Asks before it creates a group.
    """
    if [to, since, shift].count(None) != 2:
        raise click.UsageError("Give one of --to, --since and --shift.")
    body = {
        "topic": topic,
        "partitions": partitions or None,
        "to": int(to) if to is not None and to.isdigit() else to,
        "since": since,
        "shift": shift,
        "dry_run": dry_run,
        "create": yes or dry_run,
    }
    result = _reset(rest, name, body)
    if dry_run and out.is_table:
        click.echo(f"Group {name} would be moved:")
        echo_rows(result["moves"], _MOVE_COLUMNS)
    else:
        _show(result, out)


def _reset(rest: Rest, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Move offsets; a group that does not exist is created if the user agrees."""
    try:
        moved: dict[str, Any] = rest.post("v1", "groups", name, "reset", body=body)
    except RefusedError as error:
        if error.code != "group_not_found":
            raise
        if not sys.stdin.isatty():
            raise CommandError(
                f"There is no group {name}. Check the name, or pass --yes to create it.", Exit.USAGE
            ) from None
        click.confirm(f"There is no group {name}. Create it?", abort=True, err=True)
        moved = rest.post("v1", "groups", name, "reset", body={**body, "create": True})
    return moved


@group.command()
@group_name_argument
@change_options
@answer_options
def config(name: str, configs: tuple[str, ...], unset: tuple[str, ...], out: Output, rest: Rest) -> None:
    """Show a group's settings, or change them: all of those given, or none if one is wrong.

    They can be set before the group has members.
    """
    show_or_change(rest, ("v1", "groups", name, "configs"), configs, unset, out)


@group.command("delete-offsets")
@group_name_argument
@click.argument("targets", metavar="TOPIC[:PARTITION,...]...", nargs=-1, required=True)
@yes_option
@answer_options
def delete_offsets(name: str, targets: tuple[str, ...], yes: bool, out: Output, rest: Rest) -> None:
    """Delete a group's offsets in a topic, or in some of its partitions, such as orders:0,2.

    The topic need not exist any more. Exit code 4 if a member of the group reads it.
    """
    wanted = [_target_of(text) for text in targets]
    confirm(f"Delete the offsets of group {name} in {', '.join(targets)}?", is_sure=yes)
    deleted = [
        place
        for topic, partitions in wanted
        for place in rest.delete("v1", "groups", name, "offsets", topic=topic, partitions=partitions)["deleted"]
    ]
    if out.is_table:
        echo_rows(deleted, {"topic": "topic", "partition": "partition"})
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
@group_name_argument
@yes_option
@url_option
def delete(name: str, yes: bool, rest: Rest) -> None:
    """Delete a group without members, and its offsets. Exit code 4 if it has members."""
    confirm(f"Delete group {name} and its offsets?", is_sure=yes)
    rest.delete("v1", "groups", name)
    click.echo(f"Deleted group {name}.", err=True)


def _show(detail: dict[str, Any], out: Output) -> None:
    if out.printed_json(detail):
        return
    members = count_of(detail["members"], "member")
    click.echo(f"Group {detail['group']} ({detail['kind']}): {detail['state']}, {members}, lag {detail['lag']}")
    echo_rows(detail["offsets"], _OFFSET_COLUMNS)
