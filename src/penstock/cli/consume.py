"""``penstock consume``: messages of a topic in one stream. Nothing is consumed: there is no group, no offset is kept.

Partitions are read page by page and merged by time, each in its own order. A bounded read ends where the topic ended
when it began. Following asks for the ends of all partitions at once and reads those that grew; new partitions are found
the same way.
"""

from __future__ import annotations

import base64
import heapq
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, BinaryIO, Final

import click
import msgspec

from penstock.cli.exits import CommandError, Exit
from penstock.cli.options import topic_argument, url_option
from penstock.cli.output import JsonMessage, printable
from penstock.cli.rest import RefusedError, Rest
from penstock.cli.times import PastTime


@click.command()
@topic_argument
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Only this one. [default: all, merged by time]")
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="earliest, latest, an offset, or -N: the last N of each partition. [default: earliest]",
)
@click.option("--since", type=PastTime(), help="From this time on: 2025-01-31T12:00:00Z, or how long ago, such as 10m.")
@click.option(
    "-f", "--follow", is_flag=True, help="At the end, wait for more until Ctrl-C. For new messages only: --from latest."
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
    rest: Rest,
) -> None:
    """Print the messages of TOPIC up to its end; with --follow, also new ones. Nothing is consumed."""
    if start is not None and since is not None:
        raise click.UsageError("--from and --since exclude each other.")
    begin = ReadStart(time=since) if since else _read_start(start or "earliest")
    reader = TopicReader(rest, topic, partition)
    messages = chain(reader.read(begin), reader.follow() if follow else ())
    try:
        write(islice(messages, count), output or _default_output(), sys.stdout.buffer, is_prompt=follow)
    except KeyboardInterrupt:
        if not follow:
            raise


def _read_start(text: str) -> ReadStart:
    if text in {"earliest", "latest"}:
        return ReadStart(is_latest=text == "latest")
    try:
        return ReadStart(offset=int(text))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not earliest, latest or an offset", param_hint="--from") from None


def _default_output() -> str:
    return "text" if sys.stdout.isatty() else "json"


def write(messages: Iterator[JsonMessage], output: str, stream: BinaryIO, *, is_prompt: bool) -> None:
    """Write messages; with ``is_prompt``, flush after each."""
    render = {"json": _as_json, "value": _as_value, "text": as_text}[output]
    for message in messages:
        stream.write(render(message) + b"\n")
        if is_prompt:
            stream.flush()
    stream.flush()


def _as_json(message: JsonMessage) -> bytes:
    return msgspec.json.encode(message)


def _as_value(message: JsonMessage) -> bytes:
    return _bytes_of(message, "value") or b""


def as_text(message: JsonMessage) -> bytes:
    """A line for people, without control characters."""
    place = f"{message['timestamp'] or '-'}  {message['partition']}:{message['offset']}"
    key, value = (_shown(_bytes_of(message, name)) for name in ("key", "value"))
    headers = "".join(
        f"  {printable(name)}={printable(str(text))}" for name, text in message.get("headers", {}).items()
    )
    return f"{place}  {key}  {value}{headers}".encode()


def _bytes_of(message: JsonMessage, name: str) -> bytes | None:
    if f"{name}_base64" in message:
        return base64.b64decode(message[f"{name}_base64"])
    text = message.get(name)
    return None if text is None else str(text).encode()


def _shown(data: bytes | None) -> str:
    return "-" if data is None else printable(data.decode(errors="backslashreplace"))


_PAGE_MESSAGES: Final = 1_000
_POLL_S: Final = 0.1
_LONG_POLL_MS: Final = 20_000
_OUT_OF_RANGE: Final = 416


_NO_TIME: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ReadStart:
    """Where to begin: an offset (from the end if negative), a time, or one of the ends."""

    offset: int | None = None
    time: datetime | None = None
    is_latest: bool = False


@dataclass(slots=True)
class _OffsetRange:
    """A partition's readable offsets, from ``start`` up to but not including ``end``."""

    start: int
    end: int


class TopicReader:
    """Reads one topic, or one partition of it."""

    def __init__(self, rest: Rest, topic: str, partition: int | None) -> None:
        self._rest = rest
        self._topic = topic
        self._partition = partition
        self._positions: dict[int, int] = {}

    def read(self, start: ReadStart) -> Iterator[JsonMessage]:
        """Everything from ``start`` up to where the topic ends now."""
        ranges = self._ranges()
        for partition, offsets in ranges.items():
            self._positions[partition] = self._position(partition, offsets, start)
        yield from self._merge({partition: offsets.end for partition, offsets in ranges.items()})

    def follow(self) -> Iterator[JsonMessage]:
        """Everything after what was read, for ever."""
        while True:
            if len(self._positions) == 1 and self._partition is not None:
                yield from self._page(self._partition, _LONG_POLL_MS)
                continue
            ranges = self._ranges()
            for partition, offsets in ranges.items():
                self._positions.setdefault(partition, offsets.start)
            before = dict(self._positions)
            yield from self._merge({at: offsets.end for at, offsets in ranges.items() if offsets.end > before[at]})
            if self._positions == before:  # at the end, or before a transaction that is still open
                time.sleep(_POLL_S)

    def _merge(self, ends: dict[int, int]) -> Iterator[JsonMessage]:
        return heapq.merge(*(self._pages(partition, end) for partition, end in ends.items()), key=_time_of)

    def _pages(self, partition: int, end: int) -> Iterator[JsonMessage]:
        while (position := self._positions[partition]) < end:
            yield from (message for message in self._page(partition) if message["offset"] < end)
            if self._positions[partition] <= position:
                return

    def _page(self, partition: int, wait_ms: int = 0) -> list[JsonMessage]:
        position = self._positions[partition]
        try:
            page = self._fetch(partition, position, _PAGE_MESSAGES, wait_ms)
        except RefusedError as error:
            start = self._ranges()[partition].start if error.status == _OUT_OF_RANGE else position
            if start <= position:
                raise
            click.echo(
                f"{self._topic}-{partition}: offsets {position} to {start - 1} were deleted by retention.", err=True
            )
            self._positions[partition] = start
            return []
        self._positions[partition] = page["next_offset"]
        place = {"topic": self._topic, "partition": partition}
        return [{**place, **message} for message in page["messages"]]

    def _fetch(self, partition: int, offset: int | str, limit: int, wait_ms: int = 0) -> Any:
        path = ("v1", "topics", self._topic, "messages")
        timeout = wait_ms or None
        return self._rest.get(
            *path, wait_ms=wait_ms, partition=partition, offset=offset, limit=limit, timeout_ms=timeout
        )

    def _ranges(self) -> dict[int, _OffsetRange]:
        details = self._rest.get("v1", "topics", self._topic)["partition_details"]
        ranges = {
            detail["partition"]: _OffsetRange(detail["log_start_offset"], detail["high_watermark"])
            for detail in details
            if detail["high_watermark"] is not None and self._partition in {None, detail["partition"]}
        }
        if self._partition is not None and not ranges:
            raise CommandError(
                f"Topic {self._topic!r} has no partition {self._partition}; it has {len(details)}, numbered from 0.",
                Exit.NOT_FOUND,
            )
        return ranges

    # -- where to begin -----------------------------------------------------------------------------------------------

    def _position(self, partition: int, offsets: _OffsetRange, start: ReadStart) -> int:
        if start.is_latest:  # of what can be read: an open transaction ends it before the partition does
            offset: int = self._fetch(partition, "latest", 1)["next_offset"]
            return offset
        if start.time is not None:
            return self._offset_at(partition, start.time)
        if start.offset is None:
            return offsets.start
        if start.offset < 0:
            return max(offsets.start, offsets.end + start.offset)
        if self._partition is not None and not offsets.start <= start.offset <= offsets.end:
            raise CommandError(
                f"{self._topic}-{partition} holds offsets {offsets.start} to {offsets.end}, not {start.offset}.",
                Exit.USAGE,
            )
        return min(max(start.offset, offsets.start), offsets.end)

    def _offset_at(self, partition: int, at: datetime) -> int:
        """The first offset at or after a time."""
        path = ("v1", "topics", self._topic, "messages")
        page = self._rest.get(*path, partition=partition, since=at, limit=1)
        found = page["messages"]
        offset: int = found[0]["offset"] if found else page["next_offset"]
        return offset


def _time_of(message: JsonMessage) -> datetime:
    text = message["timestamp"]
    return _NO_TIME if text is None else datetime.fromisoformat(text)
