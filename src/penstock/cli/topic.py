"""``penstock topic``: topics made, looked at, changed, grown and deleted, over REST."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.names import topic_names
from penstock.cli.options import assignments_of, output_option, url_option
from penstock.cli.output import count_of, echo_json, echo_table, is_for_people
from penstock.cli.reassign import reassign
from penstock.cli.rest import RefusedError, Rest

_PARTITION_COLUMNS: Final = {
    "partition": "partition",
    "leader": "leader",
    "leader_epoch": "epoch",
    "replicas": "replicas",
    "in_sync": "in sync",
    "log_start_offset": "start",
    "high_watermark": "end",
    "segments": "segments",
    "size_bytes": "bytes",
}

_MOVING_COLUMNS: Final = {"adding": "adding", "removing": "removing"}

config_option = click.option(
    "-c", "--config", "configs", metavar="NAME=VALUE", multiple=True, help="A setting, such as retention.ms=3600000."
)


@click.group()
def topic() -> None:
    """Create, list, describe, change, move and delete topics."""


topic.add_command(reassign)


@topic.command()
@click.argument("name", shell_complete=topic_names)
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="How many. [default: defaults.topic.partitions]")
@click.option("-r", "--replication-factor", type=click.IntRange(min=1), help="Copies of each partition.")
@config_option
@click.option("--if-not-exists", is_flag=True, help="Being there already is fine.")
@output_option
@url_option
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    output: str | None,
    url: str,
) -> None:
    """Create a topic. Exit code 4 if there is one of that name."""
    rest = Rest(url)
    body: dict[str, object] = {"name": name, "configs": assignments_of(configs, "--config")}
    if partitions is not None:
        body["partitions"] = partitions
    if replication_factor is not None:
        body["replication_factor"] = replication_factor
    try:
        detail = rest.post("v1", "topics", body=body)
    except RefusedError as error:
        if not (if_not_exists and error.code == "topic_exists"):
            raise
        _tell(output, f"Topic {name} is there already.", rest.get("v1", "topics", name))
    else:
        _tell(output, f"Created topic {name} with {count_of(detail['partitions'], 'partition')}.", detail)


@topic.command("list")
@click.option("--internal", is_flag=True, help="The broker's own topics too.")
@output_option
@url_option
def list_topics(internal: bool, output: str | None, url: str) -> None:
    """List topics; as JSON, one line each."""
    topics = Rest(url).get("v1", "topics", include_internal="true" if internal else None)["topics"]
    if is_for_people(output):
        columns = ("name", "partitions", "replication_factor", "messages", "size_bytes")
        headings = ("topic", "partitions", "replication", "messages", "bytes")
        echo_table(headings, [[found[column] for column in columns] for found in topics])
    else:
        for found in topics:
            echo_json(found)


@topic.command()
@click.argument("name", shell_complete=topic_names)
@output_option
@url_option
def describe(name: str, output: str | None, url: str) -> None:
    """Show a topic with its partitions and settings. Exit code 3 if there is none of that name."""
    detail = Rest(url).get("v1", "topics", name)
    if not is_for_people(output):
        echo_json(detail)
        return
    click.echo(f"Topic {detail['name']}, id {detail['topic_id']}")
    columns = dict(_PARTITION_COLUMNS)
    partitions = detail["partition_details"]
    if any(found["adding"] or found["removing"] for found in partitions):
        columns |= _MOVING_COLUMNS
    echo_table(tuple(columns.values()), [[_cell(found[name]) for name in columns] for found in partitions])
    for found in partitions:
        for lost in found["lost"]:
            click.echo(
                f"Partition {found['partition']}: offsets {lost['first_offset']} to {lost['next_offset'] - 1} are "
                "lost. They were damaged on every replica; readers go past them."
            )
    rows = [
        [setting, value, "topic" if setting in detail["configs"] else "default"]
        for setting, value in detail["settings"].items()
    ]
    click.echo()
    echo_table(("setting", "value", "from"), rows)


@topic.command()
@click.argument("names", shell_complete=topic_names, nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--if-exists", is_flag=True, help="Not being there is fine.")
@url_option
def delete(names: tuple[str, ...], yes: bool, if_exists: bool, url: str) -> None:
    """Delete topics and everything in them, for good."""
    rest = Rest(url)
    if not yes:
        _confirm(rest, names, if_exists)
    for name in names:
        with _missing_is_fine(if_exists):
            rest.delete("v1", "topics", name)
            click.echo(f"Deleted topic {name}.", err=True)
            if rest.get("v1", "schedules", topic=name, limit=1)["schedules"]:
                click.echo(
                    f"Schedules for {name} are still to come and will fail: see penstock schedule list --topic {name}.",
                    err=True,
                )


@topic.command()
@click.argument("name", shell_complete=topic_names)
@config_option
@click.option("-u", "--unset", metavar="NAME", multiple=True, help="Put a setting back to its default.")
@output_option
@url_option
def alter(name: str, configs: tuple[str, ...], unset: tuple[str, ...], output: str | None, url: str) -> None:
    """Change settings of a topic: all of them, or none if one is wrong."""
    changes: dict[str, str | None] = dict(assignments_of(configs, "--config"))
    changes |= dict.fromkeys(unset)
    if not changes:
        raise click.UsageError("Nothing to change; give --config NAME=VALUE or --unset NAME.")
    detail = Rest(url).patch("v1", "topics", name, body={"configs": changes})
    _tell(output, f"Changed {', '.join(changes)} of topic {name}.", detail)


@topic.command("add-partitions")
@click.argument("name", shell_complete=topic_names)
@click.argument("total", type=click.IntRange(min=1))
@output_option
@url_option
def add_partitions(name: str, total: int, output: str | None, url: str) -> None:
    """Grow a topic to TOTAL partitions.

    Messages stay where they are; new ones of a key may go to another partition than before.
    """
    detail = Rest(url).post("v1", "topics", name, "partitions", body={"partitions": total})
    _tell(output, f"Topic {name} has {count_of(detail['partitions'], 'partition')} now.", detail)


def _tell(output: str | None, sentence: str, detail: Any) -> None:
    """Say what was done: to people in a sentence, to machines with the topic as it is now."""
    if is_for_people(output):
        click.echo(sentence)
    else:
        echo_json(detail)


def _confirm(rest: Rest, names: tuple[str, ...], if_exists: bool) -> None:
    if not sys.stdin.isatty():
        raise CommandError("Deleting cannot be undone; without a terminal to ask on, say --yes.", Exit.USAGE)
    for name in names:
        with _missing_is_fine(if_exists):
            messages = rest.get("v1", "topics", name)["messages"]
            click.confirm(f"Delete topic {name} with {count_of(messages, 'message')} for good?", abort=True, err=True)


@contextmanager
def _missing_is_fine(is_fine: bool) -> Iterator[None]:
    try:
        yield
    except RefusedError as error:
        if not (is_fine and error.code == "unknown_topic"):
            raise


def _cell(value: object) -> object:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return "-" if value is None else value
