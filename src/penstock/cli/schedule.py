"""``penstock schedule``: messages for later, once or repeatedly, over REST."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any, Final

import click

from penstock.cli.completion import topic_names
from penstock.cli.exits import CommandError, Exit
from penstock.cli.options import answer_options, assignments_of, combined, output_option, topic_argument, url_option
from penstock.cli.output import Column, Output, Row, count_of, echo_rows, echo_table, printable, short_text
from penstock.cli.produce import MessageShape
from penstock.cli.rest import RefusedError, Rest
from penstock.cli.times import DurationMs, PointInTime, duration_text
from penstock.priorities import PRIORITIES

_PAGE: Final = 1_000

time_options = combined(
    click.option("--at", type=PointInTime(), help="When: 2026-01-31T12:00:00Z; without a time zone, this machine's."),
    click.option("--delay", "-d", type=DurationMs(), help="How long from now: 10s, 5m, 2h, 3d."),
    click.option(
        "--every", type=DurationMs(), help="Repeat at this interval, 100ms or more; with --at, starting then."
    ),
    click.option("--cron", metavar="EXPRESSION", help="Repeat by a cron expression, such as '0 7 * * mon-fri'."),
    click.option("--time-zone", metavar="ZONE", help="The time zone of --cron. [default: UTC]"),
)


def _time_of(
    at: datetime | None, delay: int | None, every: int | None, cron: str | None, time_zone: str | None
) -> dict[str, Any]:
    if at is not None and delay is not None:
        raise click.UsageError("--at and --delay exclude each other.")
    if every is not None and cron is not None:
        raise click.UsageError("--every and --cron exclude each other.")
    if cron is not None and (at is not None or delay is not None):
        raise click.UsageError("--cron decides when it fires first; leave out --at and --delay.")
    if time_zone is not None and cron is None:
        raise click.UsageError("--time-zone goes with --cron.")
    if (at, delay, every, cron) == (None, None, None, None):
        raise click.UsageError("Give one of --at, --delay, --every and --cron.")
    return {"at": at, "delay_ms": delay, "every_ms": every, "cron": cron, "time_zone": time_zone}


@click.group()
def schedule() -> None:
    """Schedule messages for later: once, at an interval, or by a cron expression."""


@schedule.command()
@topic_argument
@click.argument("message", required=False)
@time_options
@click.option("-k", "--key", help="The key of the message.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of the message.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Its partition. [default: by key]")
@click.option("--priority", type=click.Choice(PRIORITIES), help="Its priority, for queues with priority lanes.")
@click.option(
    "--id",
    "schedule_id",
    default="",
    help="An id of your own. Adding it again changes nothing; exit code 4 if another schedule has it.",
)
@click.option(
    "--missed",
    type=click.Choice(["once", "all", "skip"]),
    default="once",
    show_default=True,
    help="For times that passed without a leader: deliver the oldest late, each of them, or none.",
)
@answer_options
def add(
    topic: str,
    message: str | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    priority: str | None,
    schedule_id: str,
    missed: str,
    out: Output,
    rest: Rest,
    **when: Any,
) -> None:
    """Schedule MESSAGE, or all of standard input, for TOPIC."""
    time = _time_of(**when)
    data = sys.stdin.buffer.read() if message is None else message.encode()
    shape = MessageShape(key=key, headers=assignments_of(headers, "--header"), partition=partition, priority=priority)
    body = {**shape.message(data, "The message"), **time, "topic": topic, "missed": missed, "id": schedule_id or None}
    _show(rest.post("v1", "schedules", body=body), out)


@schedule.command("list")
@click.option("-t", "--topic", shell_complete=topic_names, help="Only those of this topic.")
@click.option("-s", "--state", type=click.Choice(["pending", "failed"]), help="Only pending ones, or failed ones.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@answer_options
def list_schedules(topic: str | None, state: str | None, limit: int, out: Output, rest: Rest) -> None:
    """List schedules, the next due first."""
    rows: list[dict[str, Any]] = []
    after: str | None = None
    while len(rows) < limit:
        page = rest.get("v1", "schedules", topic=topic, state=state, limit=min(limit - len(rows), _PAGE), after=after)
        rows += page["schedules"]
        after = page["next"]
        if not after:
            break
    if out.is_table:
        rows.sort(key=lambda row: str(row["due"]))
    now = datetime.now(UTC)
    columns: dict[str, Column] = {
        "id": "id",
        "topic": lambda row: printable(row["topic"]),
        "due": "due",
        "in": lambda row: _wait(row, now),
        "repeats": _repeats,
        "state": _state,
        "message": lambda row: short_text(row, "value"),
    }
    if not out.rows(rows, columns):
        return
    if after:
        click.echo("There are more: raise --limit.", err=True)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@answer_options
def show(schedule_id: str, out: Output, rest: Rest) -> None:
    """Show one schedule and its message."""
    _show(rest.get("v1", "schedules", schedule_id), out)


@schedule.command()
@click.argument("schedule_ids", metavar="ID...", nargs=-1, required=True)
@url_option
def cancel(schedule_ids: tuple[str, ...], rest: Rest) -> None:
    """Cancel schedules. Exit code 3 if one of them does not exist, 4 if it is too late for one."""
    refused: list[RefusedError] = []
    for schedule_id in schedule_ids:
        try:
            rest.delete("v1", "schedules", schedule_id)
        except RefusedError as error:
            if error.status not in (404, 409):
                raise
            refused.append(error)
    done = len(schedule_ids) - len(refused)
    click.echo(f"Cancelled {count_of(done, 'schedule')}.", err=True)
    if refused:
        raise refused[0]


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@time_options
@answer_options
def reschedule(schedule_id: str, out: Output, rest: Rest, **when: Any) -> None:
    """Change when a schedule fires. A failed one is tried again."""
    _show(rest.patch("v1", "schedules", schedule_id, body=_time_of(**when)), out)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@url_option
def run(schedule_id: str, rest: Rest) -> None:
    """Deliver a schedule's message now. A repeating schedule goes on as planned."""
    rest.post("v1", "schedules", schedule_id, "run", body=None)
    click.echo(f"Delivering {printable(schedule_id)} now.", err=True)


@schedule.command("next")
@click.argument("expression")
@click.option("--time-zone", metavar="ZONE", default="UTC", show_default=True, help="Its time zone.")
@click.option("-n", "--count", type=click.IntRange(1, 1_000), default=5, show_default=True, metavar="N")
@output_option
def next_times(expression: str, time_zone: str, count: int, out: Output) -> None:
    """Show the next times of a cron EXPRESSION. Nothing is scheduled, and no node is needed."""
    from zoneinfo import ZoneInfo

    from penstock.errors import InvalidRequest
    from penstock.features.schedules.recurrence import Cron

    try:
        cron = Cron(expression, time_zone)
    except InvalidRequest as error:
        raise CommandError(error.message, Exit.USAGE) from None
    now, zone = datetime.now(UTC), ZoneInfo(time_zone)
    times: list[datetime] = []
    after_ms: int | None = int(now.timestamp() * 1000)
    while len(times) < count and after_ms is not None and (after_ms := cron.next_after(after_ms)) is not None:
        times.append(datetime.fromtimestamp(after_ms / 1000, zone))
    columns: dict[str, Column] = {
        "time": lambda row: f"{datetime.fromisoformat(row['time']).astimezone(zone):%Y-%m-%d %H:%M %Z (%a)}",
        "in": lambda row: _until(datetime.fromisoformat(row["time"]), now),
    }
    out.rows([{"time": each.isoformat()} for each in times], columns)


@schedule.command()
@answer_options
def stats(out: Output, rest: Rest) -> None:
    """Count schedules: pending, fired, cancelled, failed, and how late they fired."""
    found = rest.get("v1", "schedules", "stats")
    if out.printed_json(found):
        return
    names = ("pending", "due", "firing", "failed", "fired_total", "cancelled_total")
    echo_table([name.replace("_total", "") for name in names], [[found[name] for name in names]])
    total = max((bucket["count"] for bucket in found["lateness"]), default=0)
    if total:
        columns: dict[str, Column] = {
            "late by at most": lambda row: "any" if row["le_ms"] is None else duration_text(row["le_ms"]),
            "share": lambda row: f"{100 * row['count'] / total:.1f} %",
        }
        echo_rows(found["lateness"], columns)


# -- output ------------------------------------------------------------------------------------------------------------


def _show(found: dict[str, Any], out: Output) -> None:
    if out.printed_json(found):
        return
    rows = [
        ["id", found["id"]],
        ["topic", printable(found["topic"])],
        ["due", f"{found['due']} (in {_wait(found, datetime.now(UTC))})"],
        ["repeats", _repeats(found) or "no"],
        ["state", _state(found)],
        ["runs", found["runs"]],
        ["key", printable(str(found.get("key") or found.get("key_base64") or ""))],
        ["message", short_text(found, "value")],
    ]
    for name, value in rows:
        click.echo(f"{name:<9}{value}")


def _wait(row: Row, now: datetime) -> str:
    return "" if row["due"] is None else _until(datetime.fromisoformat(row["due"]), now)


def _until(moment: datetime, now: datetime) -> str:
    left_ms = int((moment - now).total_seconds() * 1000)
    return duration_text(left_ms) if left_ms > 0 else "now"


def _repeats(row: Row) -> str:
    if "every_ms" in row:
        return f"every {duration_text(row['every_ms'])}"
    return f"{printable(row['cron'])} {row['time_zone']}" if "cron" in row else ""


def _state(row: Row) -> str:
    return f"{row['state']}: {printable(row['reason'])}" if row.get("reason") else str(row["state"])
