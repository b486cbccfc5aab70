"""The part of ``penstock queue`` that is about groups: looked at, declared, paused, moved, emptied and forgotten."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any, Final

import click

from penstock.cli.consume import as_text
from penstock.cli.exits import CommandError, Exit
from penstock.cli.moments import Moment
from penstock.cli.names import queue_group_names, topic_names
from penstock.cli.options import assignments_of, output_option, url_option
from penstock.cli.output import count_of, echo_json, echo_table, is_for_people, printable
from penstock.cli.rest import Rest
from penstock.cli.spans import span_text

_COUNTS: Final = ("ready", "in_flight", "waiting", "dying")
_HEADS: Final = ("ready", "in flight", "waiting", "dying", "oldest")

group_option = click.option(
    "-g", "--group", shell_complete=queue_group_names, default="default", show_default=True, help="The queue group."
)


@click.command()
@click.argument("topic", required=False, shell_complete=topic_names)
@click.option(
    "-g", "--group", shell_complete=queue_group_names, help="Only this group, with its partitions and settings."
)
@output_option
@url_option
def stats(topic: str | None, group: str | None, output: str | None, url: str) -> None:
    """Show what is ready, in flight and waiting: of all queues, of TOPIC by group, or of one group by partition."""
    rest = Rest(url)
    if group is not None:
        if topic is None:
            raise click.UsageError("--group needs a TOPIC.")
        _show(rest.get("v1", "queues", topic, "groups", group), output)
        return
    topics = [topic] if topic is not None else [found["topic"] for found in rest.get("v1", "queues")["queues"]]
    queues = [rest.get("v1", "queues", name) for name in topics]
    groups = [row for found in queues for row in found["groups"]]
    if not is_for_people(output):
        for row in groups:
            echo_json(row)
        return
    rows = [
        [row["topic"], printable(row["group"]), "paused" if row["paused"] else "", *_figures(row)] for row in groups
    ]
    echo_table(("topic", "group", "", *_HEADS), rows)
    for found in queues:
        if found["dead_letters"]:
            dead = count_of(found["dead_letters"], "dead letter")
            click.echo(f"{found['topic']} has about {dead}: penstock dlq list {found['topic']}", err=True)


@click.command()
@click.argument("topic", required=False, shell_complete=topic_names)
@output_option
@url_option
def groups(topic: str | None, output: str | None, url: str) -> None:
    """List queue groups, of TOPIC or of every topic that is read as a queue."""
    queues = Rest(url).get("v1", "queues")["queues"]
    if topic is not None:
        queues = [found for found in queues if found["topic"] == topic]
        if not queues:
            Rest(url).get("v1", "topics", topic)  # not found is one thing, without groups another
    if is_for_people(output):
        rows = [[found["topic"], printable(name)] for found in queues for name in found["groups"]]
        echo_table(("topic", "group"), rows)
    else:
        for found in queues:
            for name in found["groups"]:
                echo_json({"topic": found["topic"], "group": name})


@click.command()
@click.argument("topic", shell_complete=topic_names)
@group_option
@click.option("-n", "--max", "count", type=click.IntRange(1, 1_000), default=10, show_default=True, metavar="N")
@click.option("-o", "--output", type=click.Choice(["json", "text"]), help="JSON lines, or lines for people.")
@url_option
def peek(topic: str, group: str, count: int, output: str | None, url: str) -> None:
    """Look at the first messages that a group is not done with, without receiving them."""
    found = Rest(url).get("v1", "queues", topic, "groups", group, "peek", max=count)["messages"]
    for message in found:
        if output == "text" or (output is None and sys.stdout.isatty()):
            state = f"  ({message['state'].replace('_', ' ')}, delivery {message['delivery_count']})"
            click.echo(as_text(message) + state.encode())
        else:
            echo_json(message)


@click.command()
@click.argument("topic", shell_complete=topic_names)
@group_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
@url_option
def purge(topic: str, group: str, yes: bool, output: str | None, url: str) -> None:
    """Be done with everything that is in TOPIC now, for one group. The messages stay in the log."""
    _confirm(f"Have group {group} be done with everything in {topic}?", is_sure=yes)
    detail = Rest(url).post("v1", "queues", topic, "purge", body={"group": group})
    _done(detail, output, f"Purged group {group} of {topic}.")


@click.command()
@click.argument("topic", shell_complete=topic_names)
@group_option
@click.option("--from", "start", metavar="WHERE", help="earliest, latest or an offset. [default: earliest]")
@click.option("--since", type=Moment(), help="From this time on: 2026-01-31T12:00:00Z, or how long ago, such as 2h.")
@click.option("-s", "--set", "settings", metavar="NAME=VALUE", multiple=True, help="A setting of its own: tries=5.")
@output_option
@url_option
def declare(
    topic: str,
    group: str,
    start: str | None,
    since: datetime | None,
    settings: tuple[str, ...],
    output: str | None,
    url: str,
) -> None:
    """Begin a queue group if it is not there, and give it settings of its own."""
    body: dict[str, Any] = {"settings": assignments_of(settings, "--set"), **_place("start", start, since)}
    _show(Rest(url).put("v1", "queues", topic, "groups", group, body=body), output)


@click.command()
@click.argument("topic", shell_complete=topic_names)
@group_option
@click.option("-r", "--reason", default="", help="Why; `stats` shows it.")
@output_option
@url_option
def pause(topic: str, group: str, reason: str, output: str | None, url: str) -> None:
    """Hand out nothing more to a group; what is in flight can be acked."""
    detail = Rest(url).post("v1", "queues", topic, "groups", group, "pause", body={"reason": reason})
    _done(detail, output, f"Paused group {group} of {topic}.")


@click.command()
@click.argument("topic", shell_complete=topic_names)
@group_option
@output_option
@url_option
def resume(topic: str, group: str, output: str | None, url: str) -> None:
    """Hand out messages again."""
    detail = Rest(url).post("v1", "queues", topic, "groups", group, "resume", body=None)
    _done(detail, output, f"Resumed group {group} of {topic}.")


@click.command()
@click.argument("topic", shell_complete=topic_names)
@group_option
@click.option("--to", metavar="WHERE", help="earliest, latest or an offset.")
@click.option("--since", type=Moment(), help="The first message at or after this time; 2h is two hours ago.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
@url_option
def seek(
    topic: str, group: str, to: str | None, since: datetime | None, yes: bool, output: str | None, url: str
) -> None:
    """Read on from somewhere else, as if nothing had been delivered; every lease ends."""
    if (to is None) == (since is None):
        raise click.UsageError("Give one of --to and --since.")
    _confirm(f"Move group {group} of {topic}? Every lease of it ends.", is_sure=yes)
    body = _place("to", to, since)
    _done(
        Rest(url).post("v1", "queues", topic, "groups", group, "seek", body=body),
        output,
        f"Moved group {group} of {topic}.",
    )


@click.command()
@click.argument("topic", shell_complete=topic_names)
@group_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@url_option
def forget(topic: str, group: str, yes: bool, url: str) -> None:
    """Forget a queue group, and where it was. The messages stay in the log."""
    _confirm(f"Forget group {group} of {topic}?", is_sure=yes)
    Rest(url).delete("v1", "queues", topic, "groups", group)
    click.echo(f"Forgot group {group} of {topic}.", err=True)


COMMANDS: Final = (stats, groups, peek, purge, declare, pause, resume, seek, forget)


def _place(name: str, where: str | None, since: datetime | None) -> dict[str, Any]:
    if where is not None and since is not None:
        raise click.UsageError(f"--{'from' if name == 'start' else name} and --since exclude each other.")
    if since is not None:
        return {"since": since.isoformat()}
    if where is None:
        return {}
    if not where.isdigit() and where not in {"earliest", "latest"}:
        raise click.UsageError(f"{where!r} is not earliest, latest or an offset.")
    return {name: int(where) if where.isdigit() else where}


def _confirm(question: str, *, is_sure: bool) -> None:
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise CommandError("This cannot be undone; without a terminal to ask on, say --yes.", Exit.USAGE)
    click.confirm(question, abort=True)


def _done(detail: dict[str, Any], output: str | None, sentence: str) -> None:
    if output is not None:
        _show(detail, output)
    click.echo(sentence, err=True)


def _show(detail: dict[str, Any], output: str | None) -> None:
    if not is_for_people(output):
        echo_json(detail)
        return
    reason = f" ({printable(detail['pause_reason'])})" if detail["pause_reason"] else ""
    state = f", paused{reason}" if detail["paused"] else ""
    click.echo(f"Queue group {printable(detail['group'])} of {detail['topic']}{state}")
    own = ", ".join(f"{name}={value}" for name, value in sorted(detail["own_settings"].items()))
    click.echo(f"Settings of its own: {own or 'none'}")
    rows = [[row["partition"], row["committed"], row["end"], *_figures(row)] for row in detail["partitions"]]
    echo_table(("partition", "committed", "end", *_HEADS), rows)


def _figures(row: dict[str, Any]) -> list[object]:
    return [*(row[name] for name in _COUNTS), span_text(row["oldest_age_ms"])]
