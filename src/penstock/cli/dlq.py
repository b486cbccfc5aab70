"""``penstock dlq``: dead letters listed, shown and redriven, over REST."""

from __future__ import annotations

import getpass
import sys
import time
from typing import Any, Final

import click

from penstock.cli.completion import queue_group_names
from penstock.cli.exits import CommandError, Exit
from penstock.cli.options import answer_options, combined, topic_argument, yes_option
from penstock.cli.output import Column, Output, count_of, echo_json, printable, short_text
from penstock.cli.rest import Rest
from penstock.cli.times import PastTime, time_text

_PAGE: Final = 1_000
_POLL_EVERY_S: Final = 0.3
_BAR_CHARS: Final = 30

filter_options = combined(
    click.option(
        "-g",
        "--group",
        shell_complete=queue_group_names,
        metavar="NAME",
        help="Only those of this queue group; also finds its own dead-letter topic.",
    ),
    click.option("--reason", metavar="TEXT", help="Only with exactly this reason."),
    click.option("--contains", metavar="TEXT", help="Only with this in their reason."),
    click.option("-k", "--key", help="Only with this key."),
    click.option(
        "--since", type=PastTime(), help="Only those that died since: 2026-01-31T12:00:00Z, or 2h for two hours ago."
    ),
    click.option("--until", type=PastTime(), help="Only those that died before this time."),
    click.option("-p", "--partition", type=click.IntRange(min=0), help="Only from this partition of TOPIC."),
    click.option("--offsets", metavar="FIRST-LAST", help="Only those that had these offsets in TOPIC."),
)


_group_option: Final = click.option(
    "-g",
    "--group",
    shell_complete=queue_group_names,
    metavar="NAME",
    help="The queue group, if it has a dead-letter topic of its own.",
)


@click.group()
def dlq() -> None:
    """List, show and redrive dead letters.

    TOPIC is the topic that the messages came from, or a dead-letter topic, for all that is in it.
    """


@dlq.command("list")
@topic_argument
@filter_options
@click.option("-n", "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@click.option("--all", "is_all", is_flag=True, help="Also those that have been sent back.")
@answer_options
def list_letters(topic: str, limit: int, is_all: bool, out: Output, rest: Rest, **filters: Any) -> None:
    """List dead letters; as JSON, one line each."""
    params = _filter_of(filters)
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
    if not out.rows(rows, _LETTER_COLUMNS):
        return
    more = "" if cursor is None else f" There are more: try --limit {limit * 10}."
    found = count_of(len(rows), "dead letter")
    click.echo(f"{found} in {page['topic']}; scanned {scanned:,} of {page['total']:,}.{more}", err=True)


_LETTER_COLUMNS: Final[dict[str, Column]] = {
    "place": lambda letter: f"{letter['partition']}:{letter['offset']}",
    "died": lambda letter: time_text(letter["died"]),
    "group": lambda letter: letter["group"] or "-",
    "tries": "tries",
    "key": lambda letter: short_text(letter, "key"),
    "value": lambda letter: short_text(letter, "value"),
    "reason": lambda letter: printable(letter["reason"] or "-"),
}


@dlq.command()
@topic_argument
@click.argument("place", metavar="PARTITION:OFFSET")
@_group_option
@answer_options
def show(topic: str, place: str, group: str | None, out: Output, rest: Rest) -> None:
    """Show one dead letter, by its place in `list`. Exit code 3 if there is none."""
    at = _place(place)
    where = (str(at["partition"]), str(at["offset"]))
    letter = rest.get("v1", "queues", topic, "dead-letters", *where, group=group)
    if out.printed_json(letter):
        return
    origin = letter["origin"]
    rows = [
        ("reason", printable(letter["reason"] or "-")),
        ("died", time_text(letter["died"])),
        ("group", letter["group"]),
        ("tries", letter["tries"]),
        ("from", f"{origin['topic']}, partition {origin['partition']}, offset {origin['offset']}"),
        ("published", time_text(origin["timestamp"])),
        ("sent back before", letter["times_redriven"]),
        ("sent back now", "yes" if letter["is_redriven"] else "no"),
        ("key", _whole(letter, "key")),
        *((f"header {name}", printable(str(value))) for name, value in letter["headers"].items()),
        ("value", _whole(letter, "value")),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {'-' if value is None else value}")


@dlq.command()
@topic_argument
@filter_options
@answer_options
def reasons(topic: str, out: Output, rest: Rest, **filters: Any) -> None:
    """Count dead letters by reason, the most frequent first."""
    found = rest.get("v1", "queues", topic, "dead-letters", "reasons", **_filter_of(filters))
    columns: dict[str, Column] = {
        "count": "count",
        "first": lambda row: time_text(row["first"]),
        "last": lambda row: time_text(row["last"]),
        "sample": lambda row: f"{row['sample']['partition']}:{row['sample']['offset']}",
        "reason": lambda row: printable(row["reason"] or "-"),
    }
    if not out.rows(found["reasons"], columns):
        return
    more = "" if found["is_complete"] else " There are more: narrow it with --since or --group."
    click.echo(f"Scanned {found['scanned']:,} of {found['total']:,}.{more}", err=True)


@dlq.command()
@topic_argument
@filter_options
@click.option("--place", "places", metavar="PARTITION:OFFSET", multiple=True, help="Only these, as `list` shows them.")
@click.option("--to", "target", metavar="TOPIC", help="To another topic. [default: where each came from]")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="N messages a second.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="This many messages at most.")
@click.option("--dry-run", is_flag=True, help="Only show what would be sent back.")
@yes_option
@click.option("--wait/--no-wait", default=True, help="Return when all is sent. [default: wait]")
@answer_options
def redrive(
    topic: str,
    places: tuple[str, ...],
    target: str | None,
    rate: float | None,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    wait: bool,
    out: Output,
    rest: Rest,
    **filters: Any,
) -> None:
    """Send dead letters back to where they came from.

    Each is sent once. Interrupting the command does not stop the redrive: `penstock dlq cancel` does. Exit code 1 if
    some could not be sent, 4 if another redrive of the same dead letters is running.
    """
    wanted: dict[str, Any] = _filter_of(filters)
    if places:
        wanted["places"] = [_place(place) for place in places]
    body: dict[str, Any] = {"filter": wanted, "target": target}
    if dry_run or not yes:
        found = rest.post("v1", "queues", topic, "redrive", body={**body, "dry_run": True})["dry_run"]
        if dry_run:
            _show_plan(found, limit, out)
            return
        _confirm_redrive(topic, found, limit)
    job = rest.post("v1", "queues", topic, "redrive", body={**body, "rate": rate, "limit": limit, "by": _user()})[
        "redrive"
    ]
    _show_end(_await_end(rest, topic, job, filters["group"]) if wait else job, out)


def _show_plan(found: dict[str, Any], limit: int | None, out: Output) -> None:
    if out.printed_json(found):
        return
    for target, count in sorted(found["targets"].items()):
        click.echo(f"{count_of(count, 'message')} would go to {target}.")
    if found["stranded"]:
        click.echo(f"{count_of(found['stranded'], 'message')} have nowhere to go: their topic is gone. Use --to.")
    if not found["is_complete"]:
        click.echo(f"These are from the first {found['scanned']:,}; there are more.")
    if not found["matched"]:
        click.echo("No dead letter matches.")
    elif limit is not None and limit < found["matched"]:
        click.echo(f"Of these, --limit allows {limit:,}.")


def _confirm_redrive(topic: str, found: dict[str, Any], limit: int | None) -> None:
    if not sys.stdin.isatty():
        raise CommandError(
            "There is no terminal to ask on: pass --yes to go ahead, or --dry-run to see what would be sent.",
            Exit.USAGE,
        )
    count = found["matched"] if limit is None else min(limit, found["matched"])
    if not count and found["is_complete"]:
        raise CommandError(f"No dead letter of {topic} matches.", Exit.NOT_FOUND)
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
            time.sleep(_POLL_EVERY_S)
            job = rest.get("v1", "queues", topic, "redrives", job["id"], group=group)
    except KeyboardInterrupt:
        click.echo(
            f"\nThe redrive goes on in the background; `penstock dlq cancel {topic} {job['id']}` stops it.", err=True
        )
        raise
    if is_shown:
        click.echo("\r\x1b[K", nl=False, err=True)
    return job


def _bar(job: dict[str, Any]) -> str:
    share = 1.0 if not job["total"] else min(job["scanned"] / job["total"], 1.0)
    filled = int(share * _BAR_CHARS)
    trouble = f"  waiting: {printable(job['error'])}" if job["error"] else ""
    return f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}] {share:4.0%}  {job['moved']:,} sent{trouble}"


def _show_end(job: dict[str, Any], out: Output) -> None:
    if not out.is_table:
        echo_json(job)
    elif job["state"] == "running":
        where = f"`penstock dlq redrives {job['topic']}` shows its progress"
        click.echo(f"Redrive {job['id']} of {job['topic']} is running; {where}.")
    else:
        how = " before it was cancelled" if job["state"] == "cancelled" else ""
        click.echo(f"Sent back {count_of(job['moved'], 'message')} of {job['topic']}{how}.")
    if job["failed"]:
        failed = count_of(job["failed"], "message")
        raise CommandError(f"{failed} could not be sent back and are still dead letters: {job['error']}", Exit.FAILURE)


@dlq.command()
@topic_argument
@_group_option
@answer_options
def redrives(topic: str, group: str | None, out: Output, rest: Rest) -> None:
    """List redrives, finished and running: when, by whom, how many messages."""
    jobs = rest.get("v1", "queues", topic, "redrives", group=group)["redrives"]
    columns: dict[str, Column] = {
        "id": "id",
        "state": "state",
        "opened": lambda job: time_text(job["opened"]),
        "ended": lambda job: time_text(job["ended"]),
        "by": lambda job: printable(job["by"]) or "-",
        "sent": "moved",
        "failed": "failed",
        "scanned": lambda job: f"{job['scanned']:,} of {job['total']:,}",
    }
    out.rows(jobs, columns)


@dlq.command()
@topic_argument
@click.argument("redrive_id", metavar="REDRIVE")
@_group_option
@answer_options
def cancel(topic: str, redrive_id: str, group: str | None, out: Output, rest: Rest) -> None:
    """Stop a redrive; messages already sent stay sent. Exit code 3 if it does not exist."""
    job = rest.post("v1", "queues", topic, "redrives", redrive_id, "cancel", body=None, group=group)
    _show_end(_await_end(rest, topic, job, group), out)


# -- options -----------------------------------------------------------------------------------------------------------


def _filter_of(filters: dict[str, Any]) -> dict[str, Any]:
    """Options as the API names them."""
    found: dict[str, Any] = {
        "group": filters["group"],
        "reason": filters["reason"],
        "reason_contains": filters["contains"],
        "key": filters["key"],
        "since": filters["since"],
        "until": filters["until"],
        "origin_partition": filters["partition"],
    }
    if filters["offsets"] is not None:
        first, dash, last = filters["offsets"].partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise click.UsageError(f"--offsets {filters['offsets']!r} is not FIRST-LAST, such as 100-250.")
        found |= {"first_offset": int(first), "last_offset": int(last or first)}
    return {name: value for name, value in found.items() if value is not None}


def _place(text: str) -> dict[str, int]:
    partition, _, offset = text.partition(":")
    if not partition.isdecimal() or not offset.isdecimal():
        raise click.UsageError(f"{text!r} is not PARTITION:OFFSET, such as 0:42.")
    return {"partition": int(partition), "offset": int(offset)}


def _whole(letter: dict[str, Any], name: str) -> str | None:
    if f"{name}_base64" in letter:
        return f"{letter[f'{name}_base64']} (base64)"
    text = letter.get(name)
    return None if text is None else printable(text)
