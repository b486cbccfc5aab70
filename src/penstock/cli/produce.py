"""``penstock produce``: messages from standard input or files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from penstock.cli.exits import CommandError
from penstock.cli.names import topic_names
from penstock.cli.options import assignments_of, check_later, later_options, priority_option, url_option
from penstock.cli.output import count_of, echo_json
from penstock.cli.rest import Rest
from penstock.cli.sending import Message, Sent, Shape, batches_of, lines_of, send

_PROGRESS_EVERY_S: Final = 0.5


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("-k", "--key", help="The key of every message.")
@click.option("-K", "--key-separator", metavar="TEXT", help="Each line is key, TEXT, value.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every message.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Where to put them. [default: by key]")
@priority_option
@later_options
@click.option("--json", "is_json", is_flag=True, help="Each line is a JSON object, as `consume -o json` writes them.")
@click.option("--whole", is_flag=True, help="Each input is one message, line ends and all.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print what was stored where as JSON.")
@url_option
def produce(
    topic: str,
    files: tuple[Path, ...],
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    priority: str | None,
    delay: int | None,
    at: datetime | None,
    is_json: bool,
    whole: bool,
    output: str | None,
    url: str,
) -> None:
    """Send messages to TOPIC, one for each line of standard input or FILES ('-' is standard input).

    A message counts as sent when the node has made it safe. Lines that are not UTF-8 are sent as they are.
    """
    if sum((is_json, whole, key_separator is not None)) > 1:
        raise click.UsageError("--json, --whole and --key-separator exclude each other.")
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other.")
    check_later(delay, at)
    if key_separator == "":
        raise click.BadParameter("must not be empty", param_hint="--key-separator")
    shape = Shape(
        key=key,
        key_separator=None if key_separator is None else key_separator.encode(),
        headers=assignments_of(headers, "--header"),
        partition=partition,
        priority=priority,
        delay_ms=delay,
        deliver_at=at,
        is_json=is_json,
    )
    rest, sent, progress = Rest(url), Sent(), _Progress()
    try:
        for batch in _inputs(files, shape, whole):
            send(rest, topic, batch, sent)
            progress.show(sent)
    except CommandError as error:
        raise CommandError(f"{error.message} {_stored(sent, topic)}", error.exit_code) from error
    finally:
        progress.clear()
    if output == "json":
        echo_json(_summary(topic, sent))
    elif sys.stderr.isatty():
        click.echo(f"Sent {count_of(sent.messages, 'message')} to {topic}.", err=True)


def _inputs(files: tuple[Path, ...], shape: Shape, whole: bool) -> Iterator[list[Message]]:
    for path in files or (Path("-"),):
        is_stdin = str(path) == "-"
        fd = sys.stdin.fileno() if is_stdin else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        name = "standard input" if is_stdin else str(path)
        try:
            if whole:
                yield [shape.message(_all_of(fd), name)]
            else:
                yield from batches_of(name, lines_of(fd), shape)
        finally:
            if not is_stdin:
                os.close(fd)


def _all_of(fd: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read()


def _stored(sent: Sent, topic: str) -> str:
    if not sent.messages:
        return "Nothing was stored."
    return f"{count_of(sent.messages, 'message')} before that are stored in {topic}."


def _summary(topic: str, sent: Sent) -> dict[str, object]:
    partitions = [
        {"partition": partition, "first_offset": first, "last_offset": last, "messages": count}
        for partition, (first, last, count) in sorted(sent.partitions.items())
    ]
    later = {"schedules": sent.schedules} if sent.schedules else {}
    return {"topic": topic, "messages": sent.messages, "partitions": partitions, **later}


class _Progress:
    """A line that counts along, for a person who waits."""

    def __init__(self) -> None:
        self._is_shown = False
        self._is_on = sys.stderr.isatty() and not sys.stdin.isatty()
        self._started = self._last = time.monotonic()

    def show(self, sent: Sent) -> None:
        now = time.monotonic()
        if self._is_on and now - self._last >= _PROGRESS_EVERY_S:
            self._last, self._is_shown = now, True
            rate = sent.messages / (now - self._started)
            click.echo(f"\r\x1b[K{count_of(sent.messages, 'message')} sent, {rate:,.0f}/s", nl=False, err=True)

    def clear(self) -> None:
        if self._is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)
