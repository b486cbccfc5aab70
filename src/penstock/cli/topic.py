"""``penstock topic``: topics created, listed, changed, grown and deleted, over REST."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import click

from penstock.cli.completion import topic_names
from penstock.cli.moves import reassign
from penstock.cli.options import answer_options, assignments_of, confirm, topic_name_argument, url_option, yes_option
from penstock.cli.output import Output, count_of, echo_rows, echo_table
from penstock.cli.rest import RefusedError, Rest

_TOPIC_COLUMNS: Final = {
    "topic": "name",
    "partitions": "partitions",
    "replication": "replication_factor",
    "messages": "messages",
    "bytes": "size_bytes",
}
_PARTITION_COLUMNS: Final = {
    "partition": "partition",
    "leader": "leader",
    "epoch": "leader_epoch",
    "replicas": "replicas",
    "in sync": "in_sync",
    "start": "log_start_offset",
    "end": "high_watermark",
    "segments": "segments",
    "bytes": "size_bytes",
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
@topic_name_argument
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="How many. [default: defaults.topic.partitions]")
@click.option("-r", "--replication-factor", type=click.IntRange(min=1), help="Copies of each partition.")
@config_option
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@answer_options
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    out: Output,
    rest: Rest,
) -> None:
    """Create a topic. Exit code 4 if it exists already."""
    settings = assignments_of(configs, "--config")
    body = {"name": name, "partitions": partitions, "replication_factor": replication_factor, "configs": settings}
    try:
        detail = rest.post("v1", "topics", body=body)
    except RefusedError as error:
        if not (if_not_exists and error.code == "topic_exists"):
            raise
        out.done(rest.get("v1", "topics", name), f"Topic {name} exists already.")
    else:
        out.done(detail, f"Created topic {name} with {count_of(detail['partitions'], 'partition')}.")


@topic.command("list")
@click.option("--internal", is_flag=True, help="The broker's own topics too.")
@answer_options
def list_topics(internal: bool, out: Output, rest: Rest) -> None:
    """List topics; as JSON, one line each."""
    topics = rest.get("v1", "topics", include_internal="true" if internal else None)["topics"]
    out.rows(topics, _TOPIC_COLUMNS)


@topic.command()
@topic_name_argument
@answer_options
def describe(name: str, out: Output, rest: Rest) -> None:
    """Show a topic with its partitions and settings. Exit code 3 if it does not exist."""
    detail = rest.get("v1", "topics", name)
    if out.printed_json(detail):
        return
    click.echo(f"Topic {detail['name']}, id {detail['topic_id']}")
    partitions = detail["partition_details"]
    is_moving = any(found["adding"] or found["removing"] for found in partitions)
    echo_rows(partitions, _PARTITION_COLUMNS | (_MOVING_COLUMNS if is_moving else {}))
    for found in partitions:
        for lost in found["lost"]:
            click.echo(
                f"Partition {found['partition']}: offsets {lost['first_offset']} to {lost['next_offset'] - 1} are "
                "lost. They were damaged on every replica; readers skip them."
            )
    rows = [
        [setting, value, "topic" if setting in detail["configs"] else "default"]
        for setting, value in detail["settings"].items()
    ]
    click.echo()
    echo_table(("setting", "value", "from"), rows)


@topic.command()
@click.argument("names", shell_complete=topic_names, nargs=-1, required=True)
@yes_option
@click.option("--if-exists", is_flag=True, help="Ignore topics that do not exist.")
@url_option
def delete(names: tuple[str, ...], yes: bool, if_exists: bool, rest: Rest) -> None:
    """Delete topics and everything in them, for good."""
    for name in names:
        with _missing_is_fine(if_exists):
            confirm(partial(_deletion, rest, name), is_sure=yes)
    for name in names:
        with _missing_is_fine(if_exists):
            rest.delete("v1", "topics", name)
            click.echo(f"Deleted topic {name}.", err=True)
            if rest.get("v1", "schedules", topic=name, limit=1)["schedules"]:
                click.echo(
                    f"Schedules for {name} remain and will fail: see `penstock schedule list --topic {name}`.",
                    err=True,
                )


@topic.command()
@topic_name_argument
@config_option
@click.option("-u", "--unset", metavar="NAME", multiple=True, help="Put a setting back to its default.")
@answer_options
def alter(name: str, configs: tuple[str, ...], unset: tuple[str, ...], out: Output, rest: Rest) -> None:
    """Change settings of a topic: all of those given, or none if one is wrong."""
    changes: dict[str, str | None] = dict(assignments_of(configs, "--config"))
    changes |= dict.fromkeys(unset)
    if not changes:
        raise click.UsageError("Nothing to change; give --config NAME=VALUE or --unset NAME.")
    detail = rest.patch("v1", "topics", name, body={"configs": changes})
    out.done(detail, f"Changed {', '.join(changes)} of topic {name}.")


@topic.command("add-partitions")
@topic_name_argument
@click.argument("total", type=click.IntRange(min=1))
@answer_options
def add_partitions(name: str, total: int, out: Output, rest: Rest) -> None:
    """Grow a topic to TOTAL partitions.

    Messages stay where they are; new ones of a key may go to another partition than before.
    """
    detail = rest.post("v1", "topics", name, "partitions", body={"partitions": total})
    out.done(detail, f"Topic {name} has {count_of(detail['partitions'], 'partition')} now.")


def _deletion(rest: Rest, name: str) -> str:
    messages = rest.get("v1", "topics", name)["messages"]
    return f"Delete topic {name} with {count_of(messages, 'message')} for good?"


@contextmanager
def _missing_is_fine(is_fine: bool) -> Iterator[None]:
    try:
        yield
    except RefusedError as error:
        if not (is_fine and error.code == "unknown_topic"):
            raise
