"""Input as messages: lines, JSON lines or whole files, cut into batches that are sent as soon as they are there.

Whatever has arrived is sent, so that ``tail -f | penstock produce`` is prompt and a large file goes in large batches.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from penstock.cli.exits import CommandError
from penstock.cli.rest import Rest

Message = dict[str, Any]

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
_PLACE_FIELDS: Final = {"topic", "offset"}  # `consume -o json` writes them; here they say where a message was


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a line becomes a message."""

    key: str | None = None
    key_separator: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    partition: int | None = None
    priority: str | None = None
    delay_ms: int | None = None
    deliver_at: datetime | None = None
    is_json: bool = False

    def message(self, line: bytes, where: str) -> Message:
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

    def _from_text(self, line: bytes, where: str) -> Message:
        message: Message = {}
        if self.key_separator is not None:
            key, found, line = line.partition(self.key_separator)
            if not found:
                raise CommandError(f"{where} has no {self.key_separator.decode()!r} between key and value.")
            _put(message, "key", key)
        _put(message, "value", line)
        return message


def _put(message: Message, name: str, data: bytes) -> None:
    try:
        message[name] = data.decode()
    except UnicodeDecodeError:
        message[f"{name}_base64"] = base64.b64encode(data).decode()


def _from_json(line: bytes, where: str) -> Message:
    try:
        message = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{where} is not JSON: {error}.") from None
    if not isinstance(message, dict):
        raise CommandError(f'{where} is not a JSON object such as {{"key": "k", "value": "v"}}.')
    unknown = sorted(set(message) - _MESSAGE_FIELDS - _PLACE_FIELDS)
    if unknown:
        raise CommandError(
            f"{where} has the unknown member {unknown[0]!r}; known are {', '.join(sorted(_MESSAGE_FIELDS))}."
        )
    return {
        name: value
        for name, value in message.items()
        if (name in _MESSAGE_FIELDS and value is not None) or name == "value"
    }


def lines_of(fd: int) -> Iterator[list[bytes]]:
    """The lines of a file as they arrive, without their ends; each list is what came at once."""
    rest: list[bytes] = []  # the pieces of a line whose end has not come yet
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


def batches_of(name: str, arrivals: Iterator[list[bytes]], shape: Shape) -> Iterator[list[Message]]:
    """Messages in batches, none larger than it should be unless a single message is."""
    number = 0
    for lines in arrivals:
        batch: list[Message] = []
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
    schedules: list[str] = field(default_factory=list)  # of those for later
    partitions: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def note(self, partition: int, offset: int) -> None:
        self.messages += 1
        first, last, count = self.partitions.get(partition, (offset, offset, 0))
        self.partitions[partition] = (min(first, offset), max(last, offset), count + 1)


def send(rest: Rest, topic: str, batch: list[Message], sent: Sent) -> None:
    """Publish a batch; what of it was stored is noted even if the rest was refused."""
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
