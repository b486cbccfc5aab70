"""The history: what clients asked for and what they were told, as lines of a diary.

Each client process writes a diary of its own, a line *before* it asks and a line once it knows, so that a client that
is killed leaves an open question and never a forgotten one. Times are of the one monotonic clock of this machine and
can be compared between processes. A message's text begins with its id, and the rest follows from the id: whoever reads
it can tell whether it is whole.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Literal

import msgspec

Outcome = Literal["ok", "fail", "info"]
"""It happened; it did not; nobody knows."""
Isolation = Literal["committed", "uncommitted"]
Intent = Literal["commit", "abort"]
Row = tuple[str, int, int, str]
"""Topic, partition, offset, and the id of the message there."""


class Send(msgspec.Struct, tag="send", frozen=True):
    """A producer is about to send a message. `transaction` is empty for one outside of any."""

    id: str
    topic: str
    partition: int
    at: float
    transaction: str = ""


class Sent(msgspec.Struct, tag="sent", frozen=True):
    """What became of it. The offset is negative where the client was not told."""

    id: str
    outcome: Outcome
    at: float
    offset: int = -1
    error: str = ""


class End(msgspec.Struct, tag="end", frozen=True):
    """A transaction is about to be committed or aborted."""

    transaction: str
    intent: Intent
    at: float


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """What the client was told. A commit that failed for certain is followed by an abort."""

    transaction: str
    intent: Intent
    outcome: Outcome
    at: float
    error: str = ""


class Assigned(msgspec.Struct, tag="assigned", frozen=True):
    """A session of reading one partition begins at `offset`; for a group, that is what it had committed."""

    session: str
    topic: str
    partition: int
    offset: int
    asked_at: float
    group: str = ""


class Polled(msgspec.Struct, tag="polled", frozen=True):
    """A reader was given these, in this order."""

    session: str
    isolation: Isolation
    at: float
    rows: list[Row]
    group: str = ""


class Committed(msgspec.Struct, tag="committed", frozen=True):
    """A group's offset was committed, or perhaps."""

    group: str
    topic: str
    partition: int
    offset: int
    outcome: Outcome
    at: float
    error: str = ""


class Finished(msgspec.Struct, tag="finished", frozen=True):
    """A reader or a group says at the end whether it got to the end of everything."""

    name: str
    is_caught_up: bool
    at: float
    group: str = ""


class Drained(msgspec.Struct, tag="drained", frozen=True):
    """One partition, read from first to last after everything was healed: by its leader, or off one node's disk."""

    topic: str
    partition: int
    isolation: Isolation
    end: int
    is_complete: bool
    rows: list[tuple[int, str]]
    replica: str = ""


Event = Send | Sent | End | Ended | Assigned | Polled | Committed | Finished | Drained
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Event)


class Diary:
    """A file that events are added to; each is with the kernel when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def write(self, *events: Event) -> None:
        self._file.write(b"".join(_ENCODER.encode(event) + b"\n" for event in events))

    def close(self) -> None:
        self._file.close()


def read_diary(path: Path) -> Iterator[Event]:
    """The events of a diary; the last line of a client that was killed may be torn."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield _DECODER.decode(line)


def read_all(paths: Iterable[Path]) -> Iterator[Event]:
    for path in sorted(paths):
        yield from read_diary(path)


def now() -> float:
    return round(time.monotonic(), 6)


_SIZE_MIN, _SIZE_SPREAD = 40, 900


def text_of(message_id: str) -> bytes:
    """The message itself: its id, and a filling that follows from it."""
    mark = zlib.crc32(message_id.encode())
    head = f"{message_id} {mark:08x} ".encode()
    return head.ljust(_SIZE_MIN + mark % _SIZE_SPREAD, b"%x" % (mark & 0xF))


def id_of(text: bytes) -> str:
    """The id of a message, or a word that nobody ever sent if it is not whole."""
    message_id = text.partition(b" ")[0].decode(errors="replace")
    return message_id if text == text_of(message_id) else f"damaged-{zlib.crc32(text):08x}-{message_id[:40]}"
