"""``penstock schedule``: messages for later, once or again and again, over REST."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.moments import PointInTime
from penstock.cli.names import topic_names
from penstock.cli.options import assignments_of, output_option, url_option
from penstock.cli.output import count_of, echo_json, echo_table, is_for_people, printable
from penstock.cli.rest import RefusedError, Rest
from penstock.cli.sending import Shape
from penstock.cli.spans import Span, span_text
from penstock.priorities import PRIORITIES

Command = TypeVar("Command", bound=Callable[..., Any])

_PAGE: Final = 1_000
_MESSAGE_CHARS: Final = 40

_TIME_OPTIONS: Final = (
    click.option("--at", type=PointInTime(), help="When: 2026-01-31T12:00:00Z; without a zone it is this machine's."),
    click.option("--delay", "-d", type=Span(), help="How long from now: 10s, 5m, 2h, 3d."),
    click.option("--every", type=Span(), help="Again at this distance, 100ms or more; with --at first then."),
    click.option("--cron", metavar="EXPRESSION", help="Again by a cron expression, such as '0 7 * * mon-fri'."),
    click.option("--time-zone", metavar="ZONE", help="Whose clock --cron goes by. [default: UTC]"),
)


def time_options(command: Command) -> Command:
    """Everything that `_time_of` takes."""
    for decorate in reversed(_TIME_OPTIONS):
        command = decorate(command)
    return command


def _time_of(
    at: datetime | None, delay: int | None, every: int | None, cron: str | None, time_zone: str | None
) -> dict[str, Any]:
    if at is not None and delay is not None:
        raise click.UsageError("--at and --delay exclude each other.")
    if every is not None and cron is not None:
        raise click.UsageError("--every and --cron exclude each other.")
    if cron is not None and (at is not None or delay is not None):
        raise click.UsageError("--cron says when it comes first; leave out --at and --delay.")
    if time_zone is not None and cron is None:
        raise click.UsageError("--time-zone goes with --cron.")
    given = {
        "at": None if at is None else at.isoformat(),
        "delay_ms": delay,
        "every_ms": every,
        "cron": cron,
        "time_zone": time_zone,
    }
    form = {name: value for name, value in given.items() if value is not None}
    if not form:
        raise click.UsageError("Say when: --at, --delay, --every or --cron.")
    return form


@click.group()
def schedule() -> None:
    """Have messages come later: once, every so often, or by a cron expression."""


@schedule.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("message", required=False)
@time_options
@click.option("-k", "--key", help="The key of the message.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of the message.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Where to put it. [default: by key]")
@click.option("--priority", type=click.Choice(PRIORITIES), help="How urgent it is, where the queue has lanes.")
@click.option(
    "--id",
    "schedule_id",
    default="",
    help="An id of your own, added once; exit code 4 if it stands for something else.",
)
@click.option(
    "--missed",
    type=click.Choice(["once", "all", "skip"]),
    default="once",
    show_default=True,
    help="What becomes of times that came while nobody led: the oldest comes late, each, or none.",
)
@output_option
@url_option
def add(
    topic: str,
    message: str | None,
    at: datetime | None,
    delay: int | None,
    every: int | None,
    cron: str | None,
    time_zone: str | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    priority: str | None,
    schedule_id: str,
    missed: str,
    output: str | None,
    url: str,
) -> None:
    """Schedule MESSAGE, or all of standard input, for TOPIC."""
    when = _time_of(at, delay, every, cron, time_zone)
    data = sys.stdin.buffer.read() if message is None else message.encode()
    shape = Shape(key=key, headers=assignments_of(headers, "--header"), partition=partition)
    body = {**shape.message(data, "The message"), **when, "topic": topic, "missed": missed}
    if priority is not None:
        body["priority"] = priority
    if schedule_id:
        body["id"] = schedule_id
    _show(Rest(url).post("v1", "schedules", body=body), output)


@schedule.command("list")
@click.option("-t", "--topic", shell_complete=topic_names, help="Only those of this topic.")
@click.option(
    "-s", "--state", type=click.Choice(["pending", "failed"]), help="Only those to come, or those that failed."
)
@click.option("-n", "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@output_option
@url_option
def list_schedules(topic: str | None, state: str | None, limit: int, output: str | None, url: str) -> None:
    """List schedules, those that come first first."""
    rest = Rest(url)
    rows: list[dict[str, Any]] = []
    after: str | None = None
    while len(rows) < limit:
        page = rest.get("v1", "schedules", topic=topic, state=state, limit=min(limit - len(rows), _PAGE), after=after)
        rows += page["schedules"]
        after = page["next"]
        if not after:
            break
    if not is_for_people(output):
        for row in rows:
            echo_json(row)
        return
    rows.sort(key=lambda row: str(row["due"]))
    now = datetime.now(UTC)
    cells = [
        [row["id"], printable(row["topic"]), row["due"], _wait(row, now), _again(row), _standing(row), _value(row)]
        for row in rows
    ]
    echo_table(("id", "topic", "due", "in", "again", "state", "message"), cells)
    if after:
        click.echo("There are more: raise --limit.", err=True)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@output_option
@url_option
def show(schedule_id: str, output: str | None, url: str) -> None:
    """Show one schedule and its message."""
    _show(Rest(url).get("v1", "schedules", schedule_id), output)


@schedule.command()
@click.argument("schedule_ids", metavar="ID...", nargs=-1, required=True)
@url_option
def cancel(schedule_ids: tuple[str, ...], url: str) -> None:
    """Cancel schedules. Exit code 3 if one of them is not there, 4 if it is too late for one."""
    rest, refused = Rest(url), list[RefusedError]()
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
@output_option
@url_option
def reschedule(
    schedule_id: str,
    at: datetime | None,
    delay: int | None,
    every: int | None,
    cron: str | None,
    time_zone: str | None,
    output: str | None,
    url: str,
) -> None:
    """Have a schedule come at another time, or by another rule. One that failed is tried again."""
    body = _time_of(at, delay, every, cron, time_zone)
    _show(Rest(url).patch("v1", "schedules", schedule_id, body=body), output)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@url_option
def run(schedule_id: str, url: str) -> None:
    """Have a schedule come at once. One that comes again goes on as planned."""
    Rest(url).post("v1", "schedules", schedule_id, "run", body=None)
    click.echo(f"{printable(schedule_id)} comes now.", err=True)


@schedule.command("next")
@click.argument("expression")
@click.option("--time-zone", metavar="ZONE", default="UTC", show_default=True, help="Whose clock it goes by.")
@click.option("-n", "--count", type=click.IntRange(1, 1_000), default=5, show_default=True, metavar="N")
@output_option
def next_times(expression: str, time_zone: str, count: int, output: str | None) -> None:
    """Tell the next times of a cron EXPRESSION, without scheduling anything. No node is asked."""
    from zoneinfo import ZoneInfo

    from penstock.broker.schedules.cron import Cron
    from penstock.errors import InvalidRequest

    try:
        cron = Cron(expression, time_zone)
    except InvalidRequest as error:
        raise CommandError(error.message, Exit.USAGE) from None
    now = datetime.now(UTC)
    times: list[datetime] = []
    after_ms: int | None = int(now.timestamp() * 1000)
    while len(times) < count and after_ms is not None and (after_ms := cron.next_after(after_ms)) is not None:
        times.append(datetime.fromtimestamp(after_ms / 1000, ZoneInfo(time_zone)))
    if not is_for_people(output):
        for moment in times:
            echo_json({"time": moment.isoformat()})
        return
    rows = [[f"{moment:%Y-%m-%d %H:%M %Z (%a)}", _until(moment, now)] for moment in times]
    echo_table(("time", "in"), rows)


@schedule.command()
@output_option
@url_option
def stats(output: str | None, url: str) -> None:
    """Count schedules: to come, fired, cancelled, failed, and how late they came."""
    found = Rest(url).get("v1", "schedules", "stats")
    if not is_for_people(output):
        echo_json(found)
        return
    names = ("pending", "due", "firing", "failed", "fired_total", "cancelled_total")
    echo_table([name.replace("_total", "") for name in names], [[found[name] for name in names]])
    total = max((bucket["count"] for bucket in found["lateness"]), default=0)
    if total:
        rows = [
            ["any" if bucket["le_ms"] is None else span_text(bucket["le_ms"]), f"{100 * bucket['count'] / total:.1f} %"]
            for bucket in found["lateness"]
        ]
        echo_table(("late by at most", "share"), rows)


# -- shown -------------------------------------------------------------------------------------------------------------


def _show(found: dict[str, Any], output: str | None) -> None:
    if not is_for_people(output):
        echo_json(found)
        return
    rows = [
        ["id", found["id"]],
        ["topic", printable(found["topic"])],
        ["due", f"{found['due']} (in {_wait(found, datetime.now(UTC))})"],
        ["again", _again(found) or "no"],
        ["state", _standing(found)],
        ["runs", found["runs"]],
        ["key", printable(str(found.get("key") or found.get("key_base64") or ""))],
        ["message", _value(found)],
    ]
    for name, value in rows:
        click.echo(f"{name:<9}{value}")


def _wait(row: dict[str, Any], now: datetime) -> str:
    return "" if row["due"] is None else _until(datetime.fromisoformat(row["due"]), now)


def _until(moment: datetime, now: datetime) -> str:
    left_ms = int((moment - now).total_seconds() * 1000)
    return span_text(left_ms) if left_ms > 0 else "now"


def _again(row: dict[str, Any]) -> str:
    if "every_ms" in row:
        return f"every {span_text(row['every_ms'])}"
    return f"{printable(row['cron'])} {row['time_zone']}" if "cron" in row else ""


def _standing(row: dict[str, Any]) -> str:
    return f"{row['state']}: {printable(row['reason'])}" if row.get("reason") else str(row["state"])


def _value(row: dict[str, Any]) -> str:
    text = row.get("value")
    if text is None:
        text = row.get("value_base64") or ""
    text = printable(text)
    return text if len(text) <= _MESSAGE_CHARS else text[: _MESSAGE_CHARS - 1] + "…"
