"""``penstock consume``: look at messages. Looking never consumes: no group, no offset is kept anywhere."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice
from typing import BinaryIO

import click
import msgspec

from penstock.cli.moments import Moment
from penstock.cli.names import topic_names
from penstock.cli.options import url_option
from penstock.cli.output import printable
from penstock.cli.reading import Message, Start, TopicReader
from penstock.cli.rest import Rest


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Only this one. [default: all, merged by time]")
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="earliest, latest, an offset, or -N: the last N of each partition. [default: earliest]",
)
@click.option("--since", type=Moment(), help="From this time on: 2025-01-31T12:00:00Z, or how long ago, such as 10m.")
@click.option(
    "-f", "--follow", is_flag=True, help="At the end, wait for more until Ctrl-C. Only what is new: --from latest."
)
@click.option("-n", "--max", "count", type=click.IntRange(min=0), metavar="N", help="Stop after N messages.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "value", "text"]),
    help="JSON lines, values alone, or lines for people. [default: text on a terminal, json elsewhere]",
)
@url_option
def consume(
    topic: str,
    partition: int | None,
    start: str | None,
    since: datetime | None,
    follow: bool,
    count: int | None,
    output: str | None,
    url: str,
) -> None:
    """Read messages of TOPIC up to its end, and on with --follow. Nothing is consumed by looking."""
    if start is not None and since is not None:
        raise click.UsageError("--from and --since exclude each other.")
    begin = Start(moment=since) if since else _start_of(start or "earliest")
    reader = TopicReader(Rest(url), topic, partition)
    messages = chain(reader.read(begin), reader.follow() if follow else ())
    try:
        write(islice(messages, count), output or _default_output(), sys.stdout.buffer, is_prompt=follow)
    except KeyboardInterrupt:
        if not follow:
            raise


def _start_of(text: str) -> Start:
    if text in {"earliest", "latest"}:
        return Start(is_latest=text == "latest")
    try:
        return Start(offset=int(text))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not earliest, latest or an offset", param_hint="--from") from None


def _default_output() -> str:
    return "text" if sys.stdout.isatty() else "json"


def write(messages: Iterator[Message], output: str, stream: BinaryIO, *, is_prompt: bool) -> None:
    """Write messages, each at once if ``is_prompt``."""
    render = {"json": _as_json, "value": _as_value, "text": as_text}[output]
    for message in messages:
        stream.write(render(message) + b"\n")
        if is_prompt:
            stream.flush()
    stream.flush()


def _as_json(message: Message) -> bytes:
    return msgspec.json.encode(message)


def _as_value(message: Message) -> bytes:
    return _bytes_of(message, "value") or b""


def as_text(message: Message) -> bytes:
    """A line for people, in which no byte of a message can play tricks on the terminal."""
    place = f"{message['timestamp'] or '-'}  {message['partition']}:{message['offset']}"
    key, value = (_shown(_bytes_of(message, name)) for name in ("key", "value"))
    headers = "".join(
        f"  {printable(name)}={printable(str(text))}" for name, text in message.get("headers", {}).items()
    )
    return f"{place}  {key}  {value}{headers}".encode()


def _bytes_of(message: Message, name: str) -> bytes | None:
    if f"{name}_base64" in message:
        return base64.b64decode(message[f"{name}_base64"])
    text = message.get(name)
    return None if text is None else str(text).encode()


def _shown(data: bytes | None) -> str:
    return "-" if data is None else printable(data.decode(errors="backslashreplace"))
