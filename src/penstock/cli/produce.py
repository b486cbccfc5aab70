"""``penstock produce``: messages from standard input or files: lines, JSON lines or whole files.

Input is cut into batches. What has arrived is sent at once, so that ``tail -f | penstock produce`` is prompt and a
large file goes in large batches.
"""

from __future__ import annotations

import base64
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import click
import msgspec

from penstock.cli.exits import CommandError
from penstock.cli.options import assignments_of, check_later, later_options, priority_option, topic_argument, url_option
from penstock.cli.output import JsonMessage, count_of, echo_json
from penstock.cli.rest import Rest

_PROGRESS_EVERY_S: Final = 0.5


@click.command()
@topic_argument
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("-k", "--key", help="The key of every message.")
@click.option("-K", "--key-separator", metavar="TEXT", help="Each line is key, TEXT, value.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every message.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="The partition. [default: by key]")
@priority_option
@later_options
@click.option("--json", "is_json", is_flag=True, help="Each line is a JSON object, as `consume -o json` writes them.")
@click.option("--whole", is_flag=True, help="Each input is one message, with its line ends.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print where the messages were stored, as JSON.")
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
    rest: Rest,
) -> None:
    """Send messages to TOPIC, one for each line of standard input or FILES ('-' is standard input).

    A message counts as sent when it is safe on the node. Lines that are not UTF-8 are sent as they are.
    """
    if sum((is_json, whole, key_separator is not None)) > 1:
        raise click.UsageError("--json, --whole and --key-separator exclude each other.")
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other.")
    check_later(delay, at)
    if key_separator == "":
        raise click.BadParameter("must not be empty", param_hint="--key-separator")
    shape = MessageShape(
        key=key,
        key_separator=None if key_separator is None else key_separator.encode(),
        headers=assignments_of(headers, "--header"),
        partition=partition,
        priority=priority,
        delay_ms=delay,
        deliver_at=at,
        is_json=is_json,
    )
    sent, progress = Sent(), _Progress()
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


def _inputs(files: tuple[Path, ...], shape: MessageShape, whole: bool) -> Iterator[list[JsonMessage]]:
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
    return f"{count_of(sent.messages, 'message')} before it are stored in {topic}."


def _summary(topic: str, sent: Sent) -> dict[str, object]:
    partitions = [
        {"partition": partition, "first_offset": first, "last_offset": last, "messages": count}
        for partition, (first, last, count) in sorted(sent.partitions.items())
    ]
    later = {"schedules": sent.schedules} if sent.schedules else {}
    return {"topic": topic, "messages": sent.messages, "partitions": partitions, **later}


class _Progress:
    """On a terminal, a line that counts messages."""

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


BATCH_MESSAGES_MAX: Final = 1_000
# A batch of one partition must fit into its topic's max.message.bytes, 1 MiB unless set otherwise.
BATCH_BYTES_MAX: Final = 512 * 1024
_READ_BYTES: Final = 1 << 20
_MESSAGE_FIELDS: Final = {
    "key",
    "key_base64",
    "value",
    "value_base64",
    "headers",
    "headers_base64",
    "partition",
    "timestamp",
    "priority",
    "delay_ms",
    "deliver_at",
    "schedule_id",
}
_PLACE_FIELDS: Final = {"topic", "offset"}  # written by `consume -o json`: where a message was


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShape:
    """How a line becomes a message."""

    key: str | None = None
    key_separator: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    partition: int | None = None
    priority: str | None = None
    delay_ms: int | None = None
    deliver_at: datetime | None = None
    is_json: bool = False

    def message(self, line: bytes, where: str) -> JsonMessage:
        message = _from_json(line, where) if self.is_json else self._from_text(line, where)
        if self.key is not None:
            message["key"] = self.key
        if self.headers:
            message["headers"] = {**message.get("headers", {}), **self.headers}
        if self.partition is not None:
            message["partition"] = self.partition
        if self.priority is not None:
            message["priority"] = self.priority
        if self.delay_ms is not None:
            message["delay_ms"] = self.delay_ms
        if self.deliver_at is not None:
            message["deliver_at"] = self.deliver_at.isoformat()
        return message

    def _from_text(self, line: bytes, where: str) -> JsonMessage:
        message: JsonMessage = {}
        if self.key_separator is not None:
            key, found, line = line.partition(self.key_separator)
            if not found:
                raise CommandError(f"{where} has no {self.key_separator.decode()!r} between key and value.")
            _put(message, "key", key)
        _put(message, "value", line)
        return message


def _put(message: JsonMessage, name: str, data: bytes) -> None:
    try:
        message[name] = data.decode()
    except UnicodeDecodeError:
        message[f"{name}_base64"] = base64.b64encode(data).decode()


def _from_json(line: bytes, where: str) -> JsonMessage:
    try:
        message = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{where} is not JSON: {error}.") from None
    if not isinstance(message, dict):
        raise CommandError(f'{where} is not a JSON object such as {{"key": "k", "value": "v"}}.')
    unknown = sorted(set(message) - _MESSAGE_FIELDS - _PLACE_FIELDS)
    if unknown:
        raise CommandError(
            f"{where} has an unknown member {unknown[0]!r}; known are {', '.join(sorted(_MESSAGE_FIELDS))}."
        )
    return {
        name: value
        for name, value in message.items()
        if (name in _MESSAGE_FIELDS and value is not None) or name == "value"
    }


def lines_of(fd: int) -> Iterator[list[bytes]]:
    """The lines of a file as they arrive, without their ends; each list is what came at once."""
    rest: list[bytes] = []  # the parts of a line that is not complete yet
    while data := os.read(fd, _READ_BYTES):
        first, *others = data.split(b"\n")
        rest.append(first)
        if others:
            lines = [b"".join(rest), *others[:-1]]
            rest = [others[-1]]
            yield lines
    last = b"".join(rest)
    if last:
        yield [last]


def batches_of(name: str, arrivals: Iterator[list[bytes]], shape: MessageShape) -> Iterator[list[JsonMessage]]:
    """Messages in batches, none larger than it should be unless a single message is."""
    number = 0
    for lines in arrivals:
        batch: list[JsonMessage] = []
        size = 0
        for line in lines:
            number += 1
            if shape.is_json and not line.strip():
                continue
            if batch and (len(batch) >= BATCH_MESSAGES_MAX or size + len(line) > BATCH_BYTES_MAX):
                yield batch
                batch, size = [], 0
            batch.append(shape.message(line, f"{name}, line {number},"))
            size += len(line)
        if batch:
            yield batch


@dataclass(slots=True)
class Sent:
    """What has been stored so far: (first, last, count) by partition."""

    messages: int = 0
    schedules: list[str] = field(default_factory=list)  # of delayed messages
    partitions: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def note(self, partition: int, offset: int) -> None:
        self.messages += 1
        first, last, count = self.partitions.get(partition, (offset, offset, 0))
        self.partitions[partition] = (min(first, offset), max(last, offset), count + 1)


def send(rest: Rest, topic: str, batch: list[JsonMessage], sent: Sent) -> None:
    """Publish a batch; messages that were stored are counted even if others were refused."""
    answer = rest.post("v1", "topics", topic, "batch", body={"messages": batch})
    refusals = []
    for result in answer["results"]:
        if "error" in result:
            refusals.append(result["error"])
        elif "schedule_id" in result:
            sent.messages += 1
            sent.schedules.append(result["schedule_id"])
        else:
            sent.note(result["partition"], result["offset"])
    if refusals:
        raise CommandError(f"{len(refusals)} of {len(batch)} messages were refused: {refusals[0]['detail']}")
