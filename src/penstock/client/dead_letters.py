"""What a queue says of itself and of its dead letters, and sending those back."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.client.transport import Transport


class QueueStats(msgspec.Struct, frozen=True):
    """How it is with one group of a queue. ``oldest_age_ms`` is of the oldest message that is not done."""

    ready: int
    in_flight: int
    waiting: int
    dying: int
    acked_ahead: int
    oldest_age_ms: int | None
    paused: bool
    pause_reason: str
    settings: dict[str, str]


class Origin(msgspec.Struct, frozen=True):
    """Where a dead letter came from, as far as its headers tell."""

    topic: str | None
    partition: int | None
    offset: int | None
    timestamp: datetime | None


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that nobody could process, at its place among the dead letters."""

    partition: int
    offset: int
    group: str | None
    reason: str | None
    tries: int | None
    died: datetime | None
    origin: Origin
    times_redriven: int
    is_redriven: bool
    timestamp: datetime | None = None
    headers: dict[str, Any] = {}
    key_text: str | None = msgspec.field(default=None, name="key")
    key_base64: str | None = None
    value_text: str | None = msgspec.field(default=None, name="value")
    value_base64: str | None = None

    @property
    def key(self) -> bytes | None:
        return _bytes_of(self.key_text, self.key_base64)

    @property
    def value(self) -> bytes | None:
        return _bytes_of(self.value_text, self.value_base64)


class Redrive(msgspec.Struct, frozen=True):
    """Dead letters being sent back: ``moved`` were, ``failed`` could not be and are still dead."""

    id: str
    state: str
    scanned: int
    total: int
    moved: int
    failed: int
    error: str | None


class RedrivePlan(msgspec.Struct, frozen=True):
    """What a redrive would do: how many messages to which topic. Where it is not complete there may be more."""

    matched: int
    targets: dict[str, int]
    stranded: int
    is_complete: bool


class _Page(msgspec.Struct, frozen=True):
    dead_letters: list[DeadLetter]
    cursor: str | None


class _Report(msgspec.Struct, frozen=True):
    redrive: Redrive | None = None
    dry_run: RedrivePlan | None = None


async def read_dead_letters(
    transport: Transport, topic: str, group: str, most: int, reason: str | None
) -> Sequence[DeadLetter]:
    """The first dead letters of a group, over as many pages as it takes."""
    found: list[DeadLetter] = []
    cursor: str | None = None
    while len(found) < most:
        page = await transport.get(
            _Page,
            *("v1", "queues", topic, "dead-letters"),
            group=group,
            reason=reason,
            limit=min(most - len(found), 1_000),
            cursor=cursor,
        )
        found += page.dead_letters
        cursor = page.cursor
        if cursor is None:
            break
    return found


async def redrive(transport: Transport, topic: str, body: dict[str, Any], wait_s: float) -> Redrive | RedrivePlan:
    """Begin to send dead letters back, or ask what that would do."""
    report = await transport.post(_Report, "v1", "queues", topic, "redrive", body=body, wait_s=wait_s)
    done = report.redrive or report.dry_run
    assert done is not None, "one of the two is there"
    return done


def _bytes_of(text: str | None, encoded: str | None) -> bytes | None:
    if encoded is not None:
        return base64.b64decode(encoded)
    return None if text is None else text.encode()
