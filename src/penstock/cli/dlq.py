"""``penstock dlq``: dead letters listed, looked at and sent back, over REST."""

from __future__ import annotations

import getpass
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.moments import Moment
from penstock.cli.names import queue_group_names, topic_names
from penstock.cli.options import output_option, url_option
from penstock.cli.output import count_of, echo_json, echo_table, is_for_people, printable
from penstock.cli.rest import Rest

Command = TypeVar("Command", bound=Callable[..., Any])

_PAGE: Final = 1_000
_VALUE_CHARS: Final = 40
_LOOK_EVERY_S: Final = 0.3
_BAR_CHARS: Final = 30

_FILTERS: Final = (
    click.option(
        "-g",
        "--group",
        shell_complete=queue_group_names,
        metavar="NAME",
        help="Only of this queue group; also where it has its own topic.",
    ),
    click.option("--reason", metavar="TEXT", help="Only with exactly this reason."),
    click.option("--contains", metavar="TEXT", help="Only with this in their reason."),
    click.option("-k", "--key", help="Only with this key."),
    click.option("--since", type=Moment(), help="Only those that died since: 2026-01-31T12:00:00Z, or 2h ago."),
    click.option("--until", type=Moment(), help="Only those that died before this time."),
    click.option("-p", "--partition", type=click.IntRange(min=0), help="Only from this partition of TOPIC."),
    click.option("--offsets", metavar="FIRST-LAST", help="Only those that had these offsets in TOPIC."),
)


_group_option: Final = click.option(
    "-g",
    "--group",
    shell_complete=queue_group_names,
    metavar="NAME",
    help="The queue group, where it has a dead-letter topic of its own.",
)


def filter_options(command: Command) -> Command:
    """What dead letters can be told apart by."""
    for decorate in reversed(_FILTERS):
        command = decorate(command)
    return command


@click.group()
def dlq() -> None:
    """List dead letters, look at them, and send them back.

    TOPIC is the topic whose messages died; or the one that they are in now, for all that is in there.
    """


@dlq.command("list")
@click.argument("topic", shell_complete=topic_names)
@filter_options
@click.option("-n", "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@click.option("--all", "is_all", is_flag=True, help="Also those that were sent back since.")
@output_option
@url_option
def list_letters(topic: str, limit: int, is_all: bool, output: str | None, url: str, **filters: Any) -> None:
    """List dead letters; as JSON, one line each."""
    rest, params = Rest(url), _filter_of(filters)
    rows: list[dict[str, Any]] = []
    cursor, scanned = None, 0
    while True:
        page = rest.get(
            "v1",
            "queues",
            topic,
            "dead-letters",
            **params,
            limit=min(limit - len(rows), _PAGE),
            cursor=cursor,
            include_redriven="true" if is_all else None,
        )
        rows += page["dead_letters"]
        cursor, scanned = page["cursor"], scanned + page["scanned"]
        if cursor is None or len(rows) >= limit:
            break
    if not is_for_people(output):
        for row in rows:
            echo_json(row)
        return
    columns = ("place", "died", "group", "tries", "key", "value", "reason")
    echo_table(columns, [_row(row) for row in rows])
    more = "" if cursor is None else f" There are more: --limit {limit * 10}."
    found = count_of(len(rows), "dead letter")
    click.echo(f"{found} in {page['topic']}; looked at {scanned:,} of {page['total']:,}.{more}", err=True)


def _row(letter: dict[str, Any]) -> list[object]:
    return [
        f"{letter['partition']}:{letter['offset']}",
        _time(letter["died"]),
        letter["group"] or "-",
        "-" if letter["tries"] is None else letter["tries"],
        _short(letter.get("key", letter.get("key_base64"))),
        _short(letter.get("value", letter.get("value_base64"))),
        printable(letter["reason"] or "-"),
    ]


@dlq.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("place", metavar="PARTITION:OFFSET")
@_group_option
@output_option
@url_option
def show(topic: str, place: str, group: str | None, output: str | None, url: str) -> None:
    """Show one dead letter, by its place as `list` tells it. Exit code 3 if there is none."""
    at = _place(place)
    where = (str(at["partition"]), str(at["offset"]))
    letter = Rest(url).get("v1", "queues", topic, "dead-letters", *where, group=group)
    if not is_for_people(output):
        echo_json(letter)
        return
    origin = letter["origin"]
    rows = [
        ("reason", printable(letter["reason"] or "-")),
        ("died", _time(letter["died"])),
        ("group", letter["group"]),
        ("tries", letter["tries"]),
        ("from", f"{origin['topic']}, partition {origin['partition']}, offset {origin['offset']}"),
        ("published", _time(origin["timestamp"])),
        ("sent back before", letter["times_redriven"]),
        ("sent back since", "yes" if letter["is_redriven"] else "no"),
        ("key", _whole(letter, "key")),
        *((f"header {name}", printable(str(value))) for name, value in letter["headers"].items()),
        ("value", _whole(letter, "value")),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {'-' if value is None else value}")


@dlq.command()
@click.argument("topic", shell_complete=topic_names)
@filter_options
@output_option
@url_option
def reasons(topic: str, output: str | None, url: str, **filters: Any) -> None:
    """Tell what messages died of, the most frequent first."""
    found = Rest(url).get("v1", "queues", topic, "dead-letters", "reasons", **_filter_of(filters))
    if not is_for_people(output):
        for row in found["reasons"]:
            echo_json(row)
        return
    rows = [
        [
            row["count"],
            _time(row["first"]),
            _time(row["last"]),
            f"{row['sample']['partition']}:{row['sample']['offset']}",
            printable(row["reason"] or "-"),
        ]
        for row in found["reasons"]
    ]
    echo_table(("count", "first", "last", "sample", "reason"), rows)
    rest = "" if found["is_complete"] else " Not all: narrow it with --since or --group."
    click.echo(f"Looked at {found['scanned']:,} of {found['total']:,}.{rest}", err=True)


@dlq.command()
@click.argument("topic", shell_complete=topic_names)
@filter_options
@click.option("--place", "places", metavar="PARTITION:OFFSET", multiple=True, help="Only these, as `list` tells them.")
@click.option("--to", "target", metavar="TOPIC", help="To another topic. [default: where each came from]")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="N messages a second.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="So many messages at most.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be sent back.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--wait/--no-wait", default=True, help="Return when all is sent. [default: wait]")
@output_option
@url_option
def redrive(
    topic: str,
    places: tuple[str, ...],
    target: str | None,
    rate: float | None,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    wait: bool,
    output: str | None,
    url: str,
    **filters: Any,
) -> None:
    """Send dead letters back to where they came from.

    Each is sent once, and is dead no more. Interrupting the command does not stop it: `penstock dlq cancel` does. Exit
    code 1 if some could not be sent, 4 if another redrive of the same dead letters is under way.
    """
    rest = Rest(url)
    wanted: dict[str, Any] = _filter_of(filters)
    if places:
        wanted["places"] = [_place(place) for place in places]
    body: dict[str, Any] = {"filter": wanted, "target": target}
    if dry_run or not yes:
        found = rest.post("v1", "queues", topic, "redrive", body={**body, "dry_run": True})["dry_run"]
        if dry_run:
            _tell_rehearsal(found, limit, output)
            return
        _confirm(topic, found, limit)
    job = rest.post("v1", "queues", topic, "redrive", body={**body, "rate": rate, "limit": limit, "by": _user()})[
        "redrive"
    ]
    _tell_end(_await_end(rest, topic, job, filters["group"]) if wait else job, output)


def _tell_rehearsal(found: dict[str, Any], limit: int | None, output: str | None) -> None:
    if not is_for_people(output):
        echo_json(found)
        return
    for target, count in sorted(found["targets"].items()):
        click.echo(f"{count_of(count, 'message')} would go to {target}.")
    if found["stranded"]:
        click.echo(f"{count_of(found['stranded'], 'message')} would go nowhere: their topic is gone. Use --to.")
    if not found["is_complete"]:
        click.echo(f"That is of the first {found['scanned']:,}; there are more.")
    if not found["matched"]:
        click.echo("No dead letter is meant.")
    elif limit is not None and limit < found["matched"]:
        click.echo(f"Of these, --limit sends {limit:,}.")


def _confirm(topic: str, found: dict[str, Any], limit: int | None) -> None:
    if not sys.stdin.isatty():
        raise CommandError("Without a terminal to ask on, say --yes; --dry-run tells what would be sent.", Exit.USAGE)
    count = found["matched"] if limit is None else min(limit, found["matched"])
    if not count and found["is_complete"]:
        raise CommandError(f"No dead letter of {topic} is meant.", Exit.NOT_FOUND)
    click.confirm(
        f"Send back {count_of(count, 'message')} to {', '.join(sorted(found['targets'])) or '-'}?", abort=True
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have a user without a name
        return ""


def _await_end(rest: Rest, topic: str, job: dict[str, Any], group: str | None) -> dict[str, Any]:
    is_shown = sys.stderr.isatty()
    try:
        while job["state"] in ("running", "cancelling"):
            if is_shown:
                click.echo(f"\r\x1b[K{_bar(job)}", nl=False, err=True)
            time.sleep(_LOOK_EVERY_S)
            job = rest.get("v1", "queues", topic, "redrives", job["id"], group=group)
    except KeyboardInterrupt:
        click.echo(f"\nIt goes on by itself; `penstock dlq cancel {topic} {job['id']}` stops it.", err=True)
        raise
    if is_shown:
        click.echo("\r\x1b[K", nl=False, err=True)
    return job


def _bar(job: dict[str, Any]) -> str:
    share = 1.0 if not job["total"] else min(job["scanned"] / job["total"], 1.0)
    filled = int(share * _BAR_CHARS)
    trouble = f"  waits: {printable(job['error'])}" if job["error"] else ""
    return f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}] {share:4.0%}  {job['moved']:,} sent{trouble}"


def _tell_end(job: dict[str, Any], output: str | None) -> None:
    if not is_for_people(output):
        echo_json(job)
    elif job["state"] == "running":
        where = f"`penstock dlq redrives {job['topic']}` tells how far it is"
        click.echo(f"Redrive {job['id']} of {job['topic']} is under way; {where}.")
    else:
        how = " before it was cancelled" if job["state"] == "cancelled" else ""
        click.echo(f"Sent back {count_of(job['moved'], 'message')} of {job['topic']}{how}.")
    if job["failed"]:
        failed = count_of(job["failed"], "message")
        raise CommandError(f"{failed} could not be sent back and are still dead: {job['error']}", Exit.FAILURE)


@dlq.command()
@click.argument("topic", shell_complete=topic_names)
@_group_option
@output_option
@url_option
def redrives(topic: str, group: str | None, output: str | None, url: str) -> None:
    """List what was sent back: when, by whom, how many; and what is under way."""
    jobs = Rest(url).get("v1", "queues", topic, "redrives", group=group)["redrives"]
    if not is_for_people(output):
        for job in jobs:
            echo_json(job)
        return
    columns = ("id", "state", "opened", "ended", "by", "sent", "failed", "looked at")
    echo_table(columns, [_job_row(job) for job in jobs])


def _job_row(job: dict[str, Any]) -> list[object]:
    return [
        job["id"],
        job["state"],
        _time(job["opened"]),
        _time(job["ended"]),
        printable(job["by"]) or "-",
        job["moved"],
        job["failed"],
        f"{job['scanned']:,} of {job['total']:,}",
    ]


@dlq.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("redrive_id", metavar="REDRIVE")
@_group_option
@output_option
@url_option
def cancel(topic: str, redrive_id: str, group: str | None, output: str | None, url: str) -> None:
    """Stop a redrive. What was sent stays sent. Exit code 3 if there is none of that id."""
    rest = Rest(url)
    job = rest.post("v1", "queues", topic, "redrives", redrive_id, "cancel", body=None, group=group)
    _tell_end(_await_end(rest, topic, job, group), output)


# -- words -------------------------------------------------------------------------------------------------------------


def _filter_of(filters: dict[str, Any]) -> dict[str, Any]:
    """Options as the API names them."""
    found: dict[str, Any] = {
        "group": filters["group"],
        "reason": filters["reason"],
        "reason_contains": filters["contains"],
        "key": filters["key"],
        "since": _iso(filters["since"]),
        "until": _iso(filters["until"]),
        "origin_partition": filters["partition"],
    }
    if filters["offsets"] is not None:
        first, dash, last = filters["offsets"].partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise click.UsageError(f"--offsets {filters['offsets']!r} is not FIRST-LAST, such as 100-250.")
        found |= {"first_offset": int(first), "last_offset": int(last or first)}
    return {name: value for name, value in found.items() if value is not None}


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _place(text: str) -> dict[str, int]:
    partition, _, offset = text.partition(":")
    if not partition.isdecimal() or not offset.isdecimal():
        raise click.UsageError(f"{text!r} is not PARTITION:OFFSET, such as 0:42.")
    return {"partition": int(partition), "offset": int(offset)}


def _time(text: str | None) -> str:
    """An instant as people read it, to the second."""
    return "-" if text is None else text[:19].replace("T", " ")


def _short(text: str | None) -> str:
    if text is None:
        return "-"
    told = printable(text)
    return told if len(told) <= _VALUE_CHARS else told[: _VALUE_CHARS - 1] + "…"


def _whole(letter: dict[str, Any], name: str) -> str | None:
    if f"{name}_base64" in letter:
        return f"{letter[f'{name}_base64']} (base64)"
    text = letter.get(name)
    return None if text is None else printable(text)
