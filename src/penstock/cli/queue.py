"""``penstock queue``: messages sent, received under leases and settled, over REST."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import click
import msgspec

from penstock.cli import queue_groups, queue_lanes
from penstock.cli.consume import as_text, write
from penstock.cli.exits import CommandError, Exit
from penstock.cli.names import topic_names
from penstock.cli.options import assignments_of, check_later, later_options, output_option, priority_option, url_option
from penstock.cli.output import count_of, echo_json, echo_table, is_for_people, printable
from penstock.cli.queue_groups import group_option
from penstock.cli.rest import Rest
from penstock.cli.sending import Sent, Shape, batches_of, lines_of, send
from penstock.cli.spans import Span

_RECEIPTS_MAX: Final = 10_000


@click.group()
def queue() -> None:
    """Work through topics as queues: send, receive, ack and more."""


for command in (*queue_groups.COMMANDS, queue_lanes.lanes):
    queue.add_command(command)


@queue.command("send")
@click.argument("topic", shell_complete=topic_names)
@click.argument("values", metavar="[MESSAGE]...", nargs=-1)
@click.option("-k", "--key", help="The key of every message.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every message.")
@priority_option
@later_options
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print what was stored where as JSON.")
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
    url: str,
) -> None:
    """Send each MESSAGE to TOPIC; without any, each line of standard input. `produce` can do more."""
    check_later(delay, at)
    shape = Shape(
        key=key, headers=assignments_of(headers, "--header"), priority=priority, delay_ms=delay, deliver_at=at
    )
    rest, sent = Rest(url), Sent()
    arrivals = iter([[value.encode() for value in values]]) if values else lines_of(sys.stdin.fileno())
    for batch in batches_of("standard input", arrivals, shape):
        send(rest, topic, batch, sent)
    if output == "json":
        later = {"schedules": sent.schedules} if sent.schedules else {}
        echo_json({"topic": topic, "messages": sent.messages, **later})
    elif sys.stderr.isatty():
        click.echo(f"Sent {count_of(sent.messages, 'message')} to {topic}.", err=True)


@queue.command()
@click.argument("topic", shell_complete=topic_names)
@group_option
@click.option("-n", "--max", "count", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="N")
@click.option("-w", "--wait", type=Span(), default=0, help="Wait so long for a message, up to 60s.")
@click.option("-t", "--timeout", type=Span(), help="How long they are yours. [default: as the group is set]")
@click.option("-c", "--consumer", default="", help="Who receives, where limits are set for each consumer.")
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
    url: str,
) -> None:
    """Receive messages of TOPIC under a lease and print them. Ack them by their receipts, or they come again."""
    rest = Rest(url)
    body: dict[str, Any] = {"group": group, "max": count, "wait_ms": wait, "consumer": consumer}
    if timeout is not None:
        body["visibility_timeout_ms"] = timeout
    messages = rest.post("v1", "queues", topic, "receive", body=body, wait_ms=wait)["messages"]
    form = output or ("text" if sys.stdout.isatty() else "json")
    if form == "text":
        for message in messages:
            place = f"delivery {message['delivery_count']}, until {message['lease_until']}"
            click.echo(as_text(message) + f"\n    {message['receipt']}  ({place})".encode())
    else:
        write(iter(messages), form, sys.stdout.buffer, is_prompt=True)
    if not messages and sys.stderr.isatty():
        click.echo("There is no message to receive now.", err=True)
    if is_acked and messages:
        sys.stdout.flush()
        _settle(rest, "ack", group, [message["receipt"] for message in messages], {}, None, is_quiet=True)


# -- receipts ----------------------------------------------------------------------------------------------------------

_receipts_argument: Final = click.argument("receipts", metavar="[RECEIPT]...", nargs=-1)


@queue.command()
@_receipts_argument
@group_option
@output_option
@url_option
def ack(receipts: tuple[str, ...], group: str, output: str | None, url: str) -> None:
    """Be done with messages, by their receipts. Exit code 1 if one of them could not be acked.

    Without RECEIPTs they come from standard input: one a line, or what `receive` prints as JSON.
    """
    _settle(Rest(url), "ack", group, _receipts_of(receipts), {}, output)


@queue.command()
@_receipts_argument
@group_option
@click.option("-d", "--delay", type=Span(), help="How long until they come again. [default: the group's backoff]")
@click.option("-r", "--reason", default="", help="Why they failed.")
@output_option
@url_option
def nack(receipts: tuple[str, ...], group: str, delay: int | None, reason: str, output: str | None, url: str) -> None:
    """Give messages back, to be delivered again; after the last try they go to the dead letters."""
    details: dict[str, Any] = {"reason": reason}
    if delay is not None:
        details["delay_ms"] = delay
    _settle(Rest(url), "nack", group, _receipts_of(receipts), details, output)


@queue.command()
@_receipts_argument
@group_option
@click.option("-r", "--reason", default="", help="Why they can never be worked on.")
@output_option
@url_option
def reject(receipts: tuple[str, ...], group: str, reason: str, output: str | None, url: str) -> None:
    """Send messages to the dead letters at once."""
    _settle(Rest(url), "reject", group, _receipts_of(receipts), {"reason": reason}, output)


@queue.command()
@_receipts_argument
@group_option
@click.option("-t", "--timeout", type=Span(), help="For so long from now on. [default: as the group is set]")
@output_option
@url_option
def extend(receipts: tuple[str, ...], group: str, timeout: int | None, output: str | None, url: str) -> None:
    """Hold messages for longer."""
    details = {} if timeout is None else {"visibility_timeout_ms": timeout}
    _settle(Rest(url), "extend", group, _receipts_of(receipts), details, output)


def _receipts_of(given: Sequence[str]) -> list[str]:
    """Receipts as arguments, or from standard input as lines or as JSON objects that have one."""
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
    output: str | None,
    *,
    is_quiet: bool = False,
) -> None:
    """Settle receipts and tell what became of each; an error if one of them was not done."""
    results: list[dict[str, Any]] = []
    for at in range(0, len(receipts), _RECEIPTS_MAX):
        body = {"receipts": receipts[at : at + _RECEIPTS_MAX], **details}
        results += rest.post("v1", "groups", group, verb, body=body)["results"]
    others = [result for result in results if result["status"] != "done"]
    if not is_quiet:
        _show_results(results, output)
    if others:
        first = others[0]
        why = first.get("detail") or first.get("error", {}).get("detail", "")
        raise CommandError(
            f"{len(others)} of {count_of(len(results), 'receipt')} could not be {_DONE[verb]}: "
            f"{printable(first['receipt'])} is {first['status']}. {why}".rstrip()
        )


_DONE: Final = {"ack": "acked", "nack": "nacked", "reject": "rejected", "extend": "extended"}


def _show_results(results: list[dict[str, Any]], output: str | None) -> None:
    if is_for_people(output):
        echo_table(("receipt", "status"), [[printable(row["receipt"]), row["status"]] for row in results])
    else:
        for result in results:
            echo_json(result)
