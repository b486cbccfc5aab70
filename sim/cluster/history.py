"""What clients asked for, what they were told and what they saw: the record that the oracles judge.

An acknowledgement is a promise. Everything in here is compared with what is read later, and with what is in the logs
at the end. The first thing that does not fit is a violation, named by the invariant it breaks.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

Place = tuple[str, int]  # topic and partition

INVARIANTS: Final = (
    "no acked write is lost",
    "no duplicates",
    "order of a producer",
    "consistent offsets",
    "acked is durable in enough places",
    "high watermark keeps its promise",
    "leaders agree below the high watermark",
    "one leader an epoch",
    "leaders are let in",
    "same metadata at the same index",
    "group offsets never go back",
    "no aborted read",
    "no transaction is half visible",
    "no queued message is lost",
    "acked messages never return",
    "one lease at a time",
    "leases last",
    "tries are counted",
    "keys keep their order",
    "dead letters are written once",
    "ack and publish are one",
    "priorities are kept",
    "lanes get their turn",
    "no schedule is lost",
    "no schedule fires twice",
    "no schedule fires early",
    "cancelled schedules stay away",
    "the cluster heals",
    "damage is found",
    "no bug is met",
)


class Violation(NamedTuple):
    """An invariant that was broken, and how."""

    invariant: str
    what: str
    at_s: float

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what} (at {self.at_s:.3f} s)"


@dataclass(slots=True)
class Sent:
    """A message that a producer was asked to send."""

    producer: str
    number: int  # in the order of its producer and partition
    place: Place
    transaction: str | None = None
    offset: int | None = None  # once acknowledged


class State(Enum):
    """What a client knows of its transaction."""

    OPEN = "open"
    ENDING = "ending"  # it was asked to be committed, and nobody can tell yet
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class TransactionFate:
    """What was written in a transaction, and what became of it."""

    values: list[bytes] = field(default_factory=list)
    state: State = State.OPEN


class History:
    """Everything that clients of one simulated cluster know."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.operations = 0
        self.acked = 0
        self.reads = 0
        self.faults: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.violations: list[Violation] = []
        self.lines: list[str] | None = None  # what happened, for people; None where nobody reads it
        self.trace = 0
        self.sent: dict[bytes, Sent] = {}
        self.read: dict[Place, dict[int, bytes]] = {}
        self.transactions: dict[str, TransactionFate] = {}
        self.offsets_acked: dict[tuple[str, Place], int] = {}
        self.offsets_asked: dict[tuple[str, Place], int] = {}

    # -- the trace ----------------------------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        """Something happened: it counts for the trace, and is kept for people if they want it."""
        self.trace = zlib.crc32(line.encode(), self.trace)
        if self.lines is not None:
            self.lines.append(f"{self.now_s:9.4f} {line}")

    def carry(self, sender: int, receiver: int, frame: bytes) -> None:
        """A frame arrived."""
        self.trace = zlib.crc32(frame, self.trace ^ (sender << 8 | receiver))

    def count_fault(self, kind: str, line: str) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1
        self.note(f"fault {kind}: {line}")

    def count(self, what: str, times: int = 1) -> None:
        """Something was done that one wants to know the number of, to see that a history is about it at all."""
        self.counts[what] = self.counts.get(what, 0) + times

    def violate(self, invariant: str, what: str) -> None:
        assert invariant in INVARIANTS, invariant
        self.note(f"VIOLATION {invariant}: {what}")
        self.violations.append(Violation(invariant, what, self.now_s))

    # -- messages -----------------------------------------------------------------------------------------------------

    def send(self, value: bytes, sent: Sent) -> None:
        self.operations += 1
        self.sent[value] = sent
        if sent.transaction is not None:
            self.transactions.setdefault(sent.transaction, TransactionFate()).values.append(value)

    def acknowledge(self, value: bytes, offset: int) -> None:
        """A producer was told that its message is at an offset; -1 if it was told only that it is there."""
        self.acked += 1
        sent = self.sent[value]
        if offset >= 0:
            sent.offset = offset
            self._see(sent.place, offset, value)
        else:
            sent.offset = -1

    def see(self, place: Place, offset: int, value: bytes, *, is_committed_only: bool) -> None:
        """A reader saw a message."""
        self.reads += 1
        self._see(place, offset, value)
        sent = self.sent.get(value)
        if sent is None or sent.place != place:
            self.violate("consistent offsets", f"{place} has {value!r} at {offset}, which nobody sent there")
            return
        if is_committed_only and sent.transaction is not None:
            state = self.transactions[sent.transaction].state
            if state in (State.OPEN, State.ABORTED):
                self.violate("no aborted read", f"{value!r} of {state.value} {sent.transaction} at {place} {offset}")

    def _see(self, place: Place, offset: int, value: bytes) -> None:
        known = self.read.setdefault(place, {}).setdefault(offset, value)
        if known != value:
            self.violate("consistent offsets", f"{place} had {known!r} at {offset} and now has {value!r}")

    # -- group offsets ------------------------------------------------------------------------------------------------

    def ask_offset(self, group: str, place: Place, offset: int) -> None:
        self.operations += 1
        self.offsets_asked[group, place] = offset

    def acknowledge_offset(self, group: str, place: Place, offset: int) -> None:
        self.acked += 1
        self.offsets_acked[group, place] = offset

    def see_offset(self, group: str, place: Place, offset: int, acked_before: int) -> None:
        """A group's offset was fetched; ``acked_before`` is what had been acknowledged when it was asked for."""
        self.reads += 1
        asked = self.offsets_asked.get((group, place), -1)
        if not acked_before <= offset <= asked:
            self.violate(
                "group offsets never go back",
                f"{group} is told {offset} for {place}; {acked_before} was acknowledged and {asked} asked for",
            )
