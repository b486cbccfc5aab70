"""Messages of a topic in one stream: partitions read page by page, merged by time, each in its own order.

A bounded read ends where the topic ended when it began. Following asks one question for all partitions, how far each
has come, and reads those that moved; new partitions are found the same way.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.rest import RefusedError, Rest

Message = dict[str, Any]

_PAGE_MESSAGES: Final = 1_000
_POLL_S: Final = 0.1
_LONG_POLL_MS: Final = 20_000
_OUT_OF_RANGE: Final = 416


_NO_TIME: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: an offset (from the end if negative), or a moment, or one of the ends."""

    offset: int | None = None
    moment: datetime | None = None
    is_latest: bool = False


@dataclass(slots=True)
class _Span:
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

    def read(self, start: Start) -> Iterator[Message]:
        """Everything from ``start`` up to where the topic ends now."""
        spans = self._spans()
        for partition, span in spans.items():
            self._positions[partition] = self._position(partition, span, start)
        yield from self._merge({partition: span.end for partition, span in spans.items()})

    def follow(self) -> Iterator[Message]:
        """Everything that comes after what was read, without end."""
        while True:
            if len(self._positions) == 1 and self._partition is not None:
                yield from self._page(self._partition, _LONG_POLL_MS)
                continue
            spans = self._spans()
            for partition, span in spans.items():
                self._positions.setdefault(partition, span.start)
            before = dict(self._positions)
            yield from self._merge({at: span.end for at, span in spans.items() if span.end > before[at]})
            if self._positions == before:  # at the end, or before a transaction that is still open
                time.sleep(_POLL_S)

    def _merge(self, ends: dict[int, int]) -> Iterator[Message]:
        return heapq.merge(*(self._pages(partition, end) for partition, end in ends.items()), key=_moment)

    def _pages(self, partition: int, end: int) -> Iterator[Message]:
        while (position := self._positions[partition]) < end:
            yield from (message for message in self._page(partition) if message["offset"] < end)
            if self._positions[partition] <= position:
                return

    def _page(self, partition: int, wait_ms: int = 0) -> list[Message]:
        position = self._positions[partition]
        try:
            page = self._ask(partition, position, _PAGE_MESSAGES, wait_ms)
        except RefusedError as error:
            start = self._spans()[partition].start if error.status == _OUT_OF_RANGE else position
            if start <= position:
                raise
            click.echo(f"{self._topic}-{partition}: offsets {position} to {start - 1} are gone by retention.", err=True)
            self._positions[partition] = start
            return []
        self._positions[partition] = page["next_offset"]
        place = {"topic": self._topic, "partition": partition}
        return [{**place, **message} for message in page["messages"]]

    def _ask(self, partition: int, offset: int | str, limit: int, wait_ms: int = 0) -> Any:
        path = ("v1", "topics", self._topic, "messages")
        timeout = wait_ms or None
        return self._rest.get(
            *path, wait_ms=wait_ms, partition=partition, offset=offset, limit=limit, timeout_ms=timeout
        )

    def _spans(self) -> dict[int, _Span]:
        details = self._rest.get("v1", "topics", self._topic)["partition_details"]
        spans = {
            detail["partition"]: _Span(detail["log_start_offset"], detail["high_watermark"])
            for detail in details
            if detail["high_watermark"] is not None and self._partition in {None, detail["partition"]}
        }
        if self._partition is not None and not spans:
            raise CommandError(
                f"Topic {self._topic!r} has no partition {self._partition}; it has {len(details)}, numbered from 0.",
                Exit.NOT_FOUND,
            )
        return spans

    # -- where to begin -----------------------------------------------------------------------------------------------

    def _position(self, partition: int, span: _Span, start: Start) -> int:
        if start.is_latest:  # of what can be read: an open transaction ends it before the partition does
            offset: int = self._ask(partition, "latest", 1)["next_offset"]
            return offset
        if start.moment is not None:
            return self._find(partition, start.moment)
        if start.offset is None:
            return span.start
        if start.offset < 0:
            return max(span.start, span.end + start.offset)
        if self._partition is not None and not span.start <= start.offset <= span.end:
            raise CommandError(
                f"{self._topic}-{partition} holds offsets {span.start} to {span.end}, not {start.offset}.",
                Exit.USAGE,
            )
        return min(max(start.offset, span.start), span.end)

    def _find(self, partition: int, moment: datetime) -> int:
        """The first offset at or after a moment."""
        path = ("v1", "topics", self._topic, "messages")
        page = self._rest.get(*path, partition=partition, since=moment.isoformat(), limit=1)
        found = page["messages"]
        offset: int = found[0]["offset"] if found else page["next_offset"]
        return offset


def _moment(message: Message) -> datetime:
    text = message["timestamp"]
    return _NO_TIME if text is None else datetime.fromisoformat(text)
