"""``penstock queue``: messages sent, received under leases and settled, and queue groups managed, over REST."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec

from penstock.cli.completion import queue_group_names, topic_names
from penstock.cli.consume import as_text, write
from penstock.cli.exits import CommandError, Exit
from penstock.cli.options import (
    answer_options,
    assignments_of,
    check_later,
    confirm,
    later_options,
    priority_option,
    queue_group_option,
    topic_argument,
    url_option,
    yes_option,
)
from penstock.cli.output import Column, Output, count_of, echo_json, echo_rows, echo_table, printable
from penstock.cli.produce import MessageShape, Sent, batches_of, lines_of, send
from penstock.cli.rest import Rest
from penstock.cli.times import DurationMs, PastTime, duration_text

_RECEIPTS_MAX: Final = 10_000


@click.group()
def queue() -> None:
    """Use topics as queues: send, receive, ack, manage groups."""


@queue.command("send")
@topic_argument
@click.argument("values", metavar="[MESSAGE]...", nargs=-1)
@click.option("-k", "--key", help="The key of every message.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every message.")
@priority_option
@later_options
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print where the messages were stored, as JSON.")
@url_option
def send_messages(
    topic: str,
    values: tuple[str, ...],
    key: str | None,
    headers: tuple[str, ...],
    priority: str | None,
    delay: int | None,
    at: datetime | None,
    output: str | None,
    rest: Rest,
) -> None:
    """Send each MESSAGE to TOPIC; without any, each line of standard input. `produce` can do more."""
    check_later(delay, at)
    shape = MessageShape(
        key=key, headers=assignments_of(headers, "--header"), priority=priority, delay_ms=delay, deliver_at=at
    )
    sent = Sent()
    arrivals = iter([[value.encode() for value in values]]) if values else lines_of(sys.stdin.fileno())
    for batch in batches_of("standard input", arrivals, shape):
        send(rest, topic, batch, sent)
    if output == "json":
        later = {"schedules": sent.schedules} if sent.schedules else {}
        echo_json({"topic": topic, "messages": sent.messages, **later})
    elif sys.stderr.isatty():
        click.echo(f"Sent {count_of(sent.messages, 'message')} to {topic}.", err=True)


@queue.command()
@topic_argument
@queue_group_option
@click.option("-n", "--max", "count", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="N")
@click.option("-w", "--wait", type=DurationMs(), default=0, help="Wait this long for a message, up to 60s.")
@click.option("-t", "--timeout", type=DurationMs(), help="How long the lease lasts. [default: the group's setting]")
@click.option("-c", "--consumer", default="", help="The name of this consumer, for groups with a limit per consumer.")
@click.option("--ack", "is_acked", is_flag=True, help="Ack what was printed.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "value", "text"]),
    help="JSON lines, values alone, or lines for people. [default: text on a terminal, json elsewhere]",
)
@url_option
def receive(
    topic: str,
    group: str,
    count: int,
    wait: int,
    timeout: int | None,
    consumer: str,
    is_acked: bool,
    output: str | None,
    rest: Rest,
) -> None:
    """Lease messages of TOPIC and print them. Ack them by their receipts, or they are delivered again."""
    body = {"group": group, "max": count, "wait_ms": wait, "visibility_timeout_ms": timeout, "consumer": consumer}
    messages = rest.post("v1", "queues", topic, "receive", body=body, wait_ms=wait)["messages"]
    form = output or ("text" if sys.stdout.isatty() else "json")
    if form == "text":
        for message in messages:
            place = f"delivery {message['delivery_count']}, until {message['lease_until']}"
            click.echo(as_text(message) + f"\n    {message['receipt']}  ({place})".encode())
    else:
        write(iter(messages), form, sys.stdout.buffer, is_prompt=True)
    if not messages and sys.stderr.isatty():
        click.echo("There are no messages to receive now.", err=True)
    if is_acked and messages:
        sys.stdout.flush()
        _settle(rest, "ack", group, [message["receipt"] for message in messages], {}, None)


# -- receipts ----------------------------------------------------------------------------------------------------------

_receipts_argument: Final = click.argument("receipts", metavar="[RECEIPT]...", nargs=-1)


@queue.command()
@_receipts_argument
@queue_group_option
@answer_options
def ack(receipts: tuple[str, ...], group: str, out: Output, rest: Rest) -> None:
    """Ack messages by their receipts. Exit code 1 if one of them could not be acked.

    Without RECEIPTs they come from standard input: one a line, or what `receive` prints as JSON.
    """
    _settle(rest, "ack", group, _receipts_of(receipts), {}, out)


@queue.command()
@_receipts_argument
@queue_group_option
@click.option(
    "-d", "--delay", type=DurationMs(), help="How long until they are delivered again. [default: the group's backoff]"
)
@click.option("-r", "--reason", default="", help="Why they failed.")
@answer_options
def nack(receipts: tuple[str, ...], group: str, delay: int | None, reason: str, out: Output, rest: Rest) -> None:
    """Have messages delivered again; after the last try they go to the dead letters."""
    _settle(rest, "nack", group, _receipts_of(receipts), {"reason": reason, "delay_ms": delay}, out)


@queue.command()
@_receipts_argument
@queue_group_option
@click.option("-r", "--reason", default="", help="Why they can never be processed.")
@answer_options
def reject(receipts: tuple[str, ...], group: str, reason: str, out: Output, rest: Rest) -> None:
    """Send messages to the dead letters at once."""
    _settle(rest, "reject", group, _receipts_of(receipts), {"reason": reason}, out)


@queue.command()
@_receipts_argument
@queue_group_option
@click.option("-t", "--timeout", type=DurationMs(), help="How long from now. [default: the group's setting]")
@answer_options
def extend(receipts: tuple[str, ...], group: str, timeout: int | None, out: Output, rest: Rest) -> None:
    """Extend leases."""
    _settle(rest, "extend", group, _receipts_of(receipts), {"visibility_timeout_ms": timeout}, out)


def _receipts_of(given: Sequence[str]) -> list[str]:
    """Receipts from the arguments, or from standard input: a receipt a line, or JSON objects that have one."""
    if given:
        return list(given)
    if sys.stdin.isatty():
        raise CommandError("Give receipts, as arguments or on standard input.", Exit.USAGE)
    return [_receipt_in(line.strip()) for line in sys.stdin if line.strip()]


def _receipt_in(line: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        receipt = msgspec.json.decode(line, type=dict)["receipt"]
    except (msgspec.DecodeError, KeyError):
        raise CommandError(f"This line has no receipt: {printable(line[:80])}", Exit.USAGE) from None
    return str(receipt)


def _settle(
    rest: Rest,
    verb: str,
    group: str,
    receipts: list[str],
    details: dict[str, Any],
    out: Output | None,
) -> None:
    """Settle receipts and show what became of each; an error if one of them was not settled."""
    results: list[dict[str, Any]] = []
    for at in range(0, len(receipts), _RECEIPTS_MAX):
        body = {"receipts": receipts[at : at + _RECEIPTS_MAX], **details}
        results += rest.post("v1", "groups", group, verb, body=body)["results"]
    others = [result for result in results if result["status"] != "done"]
    if out is not None:
        out.rows(results, _RESULT_COLUMNS)
    if others:
        first = others[0]
        why = first.get("detail") or first.get("error", {}).get("detail", "")
        raise CommandError(
            f"{len(others)} of {count_of(len(results), 'receipt')} could not be {_DONE[verb]}: "
            f"{printable(first['receipt'])} is {first['status']}. {why}".rstrip()
        )


_DONE: Final = {"ack": "acked", "nack": "nacked", "reject": "rejected", "extend": "extended"}
_RESULT_COLUMNS: Final[dict[str, Column]] = {"receipt": lambda row: printable(row["receipt"]), "status": "status"}


# -- groups ------------------------------------------------------------------------------------------------------------

_FIGURES: Final[dict[str, Column]] = {
    "ready": "ready",
    "in flight": "in_flight",
    "waiting": "waiting",
    "dying": "dying",
    "oldest": lambda row: duration_text(row["oldest_age_ms"]),
}


@queue.command()
@click.argument("topic", required=False, shell_complete=topic_names)
@click.option(
    "-g", "--group", shell_complete=queue_group_names, help="Only this group, with its partitions and settings."
)
@answer_options
def stats(topic: str | None, group: str | None, out: Output, rest: Rest) -> None:
    """Show what is ready, in flight and waiting in all queues, in TOPIC by group, or in one group by partition."""
    if group is not None:
        if topic is None:
            raise click.UsageError("--group needs a TOPIC.")
        _show_group(rest.get("v1", "queues", topic, "groups", group), out)
        return
    topics = [topic] if topic is not None else [found["topic"] for found in rest.get("v1", "queues")["queues"]]
    queues = [rest.get("v1", "queues", name) for name in topics]
    groups = [row for found in queues for row in found["groups"]]
    columns: dict[str, Column] = {
        "topic": "topic",
        "group": lambda row: printable(row["group"]),
        "": lambda row: "paused" if row["paused"] else "",
        **_FIGURES,
    }
    if not out.rows(groups, columns):
        return
    for found in queues:
        if found["dead_letters"]:
            dead = count_of(found["dead_letters"], "dead letter")
            click.echo(f"{found['topic']} has about {dead}: see `penstock dlq list {found['topic']}`.", err=True)


@queue.command()
@click.argument("topic", required=False, shell_complete=topic_names)
@answer_options
def groups(topic: str | None, out: Output, rest: Rest) -> None:
    """List queue groups, of TOPIC or of every topic that is read as a queue."""
    queues = rest.get("v1", "queues")["queues"]
    if topic is not None:
        queues = [found for found in queues if found["topic"] == topic]
        if not queues:
            rest.get("v1", "topics", topic)  # exit code 3 if it does not exist
    rows = [{"topic": found["topic"], "group": name} for found in queues for name in found["groups"]]
    out.rows(rows, {"topic": "topic", "group": lambda row: printable(row["group"])})


@queue.command()
@topic_argument
@queue_group_option
@click.option("-n", "--max", "count", type=click.IntRange(1, 1_000), default=10, show_default=True, metavar="N")
@click.option("-o", "--output", type=click.Choice(["json", "text"]), help="JSON lines, or lines for people.")
@url_option
def peek(topic: str, group: str, count: int, output: str | None, rest: Rest) -> None:
    """Show the first messages that a group has not acked, without receiving them."""
    found = rest.get("v1", "queues", topic, "groups", group, "peek", max=count)["messages"]
    for message in found:
        if output == "text" or (output is None and sys.stdout.isatty()):
            state = f"  ({message['state'].replace('_', ' ')}, delivery {message['delivery_count']})"
            click.echo(as_text(message) + state.encode())
        else:
            echo_json(message)


@queue.command()
@topic_argument
@queue_group_option
@yes_option
@answer_options
def purge(topic: str, group: str, yes: bool, out: Output, rest: Rest) -> None:
    """Ack everything that is in TOPIC now, for one group. The messages stay in the log."""
    confirm(f"Ack everything in {topic} for group {group}?", is_sure=yes)
    detail = rest.post("v1", "queues", topic, "purge", body={"group": group})
    _report(detail, out, f"Purged group {group} of {topic}.")


@queue.command()
@topic_argument
@queue_group_option
@click.option("--from", "start", metavar="WHERE", help="earliest, latest or an offset. [default: earliest]")
@click.option("--since", type=PastTime(), help="From this time on: 2026-01-31T12:00:00Z, or how long ago, such as 2h.")
@click.option("-s", "--set", "settings", metavar="NAME=VALUE", multiple=True, help="A setting of its own: tries=5.")
@answer_options
def declare(
    topic: str,
    group: str,
    start: str | None,
    since: datetime | None,
    settings: tuple[str, ...],
    out: Output,
    rest: Rest,
) -> None:
    """Create a queue group if it does not exist, and set its own settings."""
    body: dict[str, Any] = {"settings": assignments_of(settings, "--set"), **_start_of("start", start, since)}
    _show_group(rest.put("v1", "queues", topic, "groups", group, body=body), out)


@queue.command()
@topic_argument
@queue_group_option
@click.option("-r", "--reason", default="", help="Why; `stats` shows it.")
@answer_options
def pause(topic: str, group: str, reason: str, out: Output, rest: Rest) -> None:
    """Deliver no more messages to a group; those in flight can be acked."""
    detail = rest.post("v1", "queues", topic, "groups", group, "pause", body={"reason": reason})
    _report(detail, out, f"Paused group {group} of {topic}.")


@queue.command()
@topic_argument
@queue_group_option
@answer_options
def resume(topic: str, group: str, out: Output, rest: Rest) -> None:
    """Deliver messages again."""
    detail = rest.post("v1", "queues", topic, "groups", group, "resume", body=None)
    _report(detail, out, f"Resumed group {group} of {topic}.")


@queue.command()
@topic_argument
@queue_group_option
@click.option("--to", metavar="WHERE", help="earliest, latest or an offset.")
@click.option("--since", type=PastTime(), help="The first message at or after this time; 2h is two hours ago.")
@yes_option
@answer_options
def seek(topic: str, group: str, to: str | None, since: datetime | None, yes: bool, out: Output, rest: Rest) -> None:
    """Continue elsewhere, as if nothing had been delivered; every lease ends."""
    if (to is None) == (since is None):
        raise click.UsageError("Give one of --to and --since.")
    confirm(f"Move group {group} of {topic}? All its leases end.", is_sure=yes)
    body = _start_of("to", to, since)
    detail = rest.post("v1", "queues", topic, "groups", group, "seek", body=body)
    _report(detail, out, f"Moved group {group} of {topic}.")


@queue.command()
@topic_argument
@queue_group_option
@yes_option
@url_option
def forget(topic: str, group: str, yes: bool, rest: Rest) -> None:
    """Delete a queue group and its progress. The messages stay in the log."""
    confirm(f"Delete group {group} of {topic}?", is_sure=yes)
    rest.delete("v1", "queues", topic, "groups", group)
    click.echo(f"Deleted group {group} of {topic}.", err=True)


def _start_of(name: str, where: str | None, since: datetime | None) -> dict[str, Any]:
    if where is not None and since is not None:
        raise click.UsageError(f"--{'from' if name == 'start' else name} and --since exclude each other.")
    if since is not None:
        return {"since": since}
    if where is None:
        return {}
    if not where.isdigit() and where not in {"earliest", "latest"}:
        raise click.UsageError(f"{where!r} is not earliest, latest or an offset.")
    return {name: int(where) if where.isdigit() else where}


def _report(detail: dict[str, Any], out: Output, sentence: str) -> None:
    if out.is_asked_for:
        _show_group(detail, out)
    click.echo(sentence, err=True)


def _show_group(detail: dict[str, Any], out: Output) -> None:
    if out.printed_json(detail):
        return
    reason = f" ({printable(detail['pause_reason'])})" if detail["pause_reason"] else ""
    state = f", paused{reason}" if detail["paused"] else ""
    click.echo(f"Queue group {printable(detail['group'])} of {detail['topic']}{state}")
    own = ", ".join(f"{name}={value}" for name, value in sorted(detail["own_settings"].items()))
    click.echo(f"Own settings: {own or 'none'}")
    columns = {"partition": "partition", "committed": "committed", "end": "end", **_FIGURES}
    echo_rows(detail["partitions"], columns)


# -- lanes -------------------------------------------------------------------------------------------------------------

_LANE_COLUMNS: Final = ("lane", "weight", "ready", "in flight", "served", "per second", "last served", "oldest")


@queue.command()
@topic_argument
@click.option("-g", "--group", shell_complete=queue_group_names, help="Only this group, with its partitions.")
@answer_options
def lanes(topic: str, group: str | None, out: Output, rest: Rest) -> None:
    """Show the priority lanes of TOPIC's queue groups: what is ready, in flight, and recently served."""
    found = rest.get("v1", "queues", topic, "lanes", group=group)["groups"]
    for each in found:
        if not out.is_table:
            echo_json({"topic": topic, **each})
        elif not each["is_on"]:
            click.echo(
                f"Group {printable(each['group'])} of {topic} has no lanes. "
                f"Turn them on: `penstock topic alter {topic} -c queue.lanes=on`."
            )
        else:
            _show_lanes(topic, each, has_partitions=group is not None)


def _show_lanes(topic: str, group: dict[str, Any], *, has_partitions: bool) -> None:
    fair = f", fair by {printable(group['fair_by'])}" if group["fair_by"] else ""
    unseen = f", {group['unseen']:,} not scanned yet" if group["unseen"] else ""
    click.echo(f"Group {printable(group['group'])} of {topic}{fair}{unseen}")
    weights = group["weights"]
    if has_partitions and len(group["partitions"]) > 1:
        rows = [
            [part["partition"], *_lane_row(lane, weights)] for part in group["partitions"] for lane in part["lanes"]
        ]
        echo_table(("partition", *_LANE_COLUMNS), rows)
    else:
        echo_table(_LANE_COLUMNS, [_lane_row(lane, weights) for lane in group["lanes"]])


def _lane_row(lane: dict[str, Any], weights: dict[str, int]) -> list[object]:
    rate = f"{lane['served_per_second']:,.1f}"
    ages = [_age_ms(lane["last_served"]), lane["oldest_age_ms"]]
    counts = [lane["ready"], lane["in_flight"], lane["served"], rate]
    return [lane["lane"], weights[lane["lane"]], *counts, *map(duration_text, ages)]


def _age_ms(moment: str | None) -> int | None:
    if moment is None:
        return None
    return max(0, int((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds() * 1000))
