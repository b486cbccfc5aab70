"""The account of a history: its events, sorted by what they are about. The checks read it and decide nothing else.

A message's id is ``<client>.<incarnation>-<number>``, so that the client is known from it; the id of a result derived
from another record ends with ``/<partition>.<offset>`` of that record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from bench.chaos.history import (
    Assigned,
    Committed,
    Drained,
    End,
    Ended,
    Event,
    Finished,
    Isolation,
    Outcome,
    Polled,
    Send,
    Sent,
)

Place = tuple[str, int]
"""Topic and partition."""


def name_of(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


class Fate(Enum):
    """How a transaction ended, as far as its client can know."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Message:
    """A message that a client meant to send, and what it knows of it."""

    id: str
    place: Place
    at: float
    transaction: str
    outcome: Outcome = "info"
    offset: int = -1
    answered_at: float = 0.0

    @property
    def client(self) -> str:
        return self.id.partition("-")[0]


@dataclass(slots=True)
class Transaction:
    """The messages of a transaction, and what its client asked for and was told."""

    id: str
    messages: list[Message] = field(default_factory=list)
    commit_asked_at: float | None = None
    fate: Fate = Fate.UNKNOWN

    def settle(self, ended: Ended) -> None:
        if ended.outcome == "ok":
            self.fate = Fate.COMMITTED if ended.intent == "commit" else Fate.ABORTED


@dataclass(frozen=True, slots=True)
class Seen:
    """A record that somebody was given, and when."""

    offset: int
    id: str
    at: float


@dataclass(slots=True)
class Session:
    """One reader on one partition from one start, without a seek: offsets may only grow."""

    name: str
    place: Place
    isolation: Isolation
    group: str = ""
    start: int | None = None
    records: list[Seen] = field(default_factory=list)


class Account:
    """Every event, in its place."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.messages: dict[str, Message] = {}
        self.transactions: dict[str, Transaction] = {}
        self.sessions: dict[tuple[str, Place], Session] = {}
        self.drains: list[Drained] = []
        self.commits: list[Committed] = []
        self.starts: list[Assigned] = []
        self.finished: list[Finished] = []
        later: list[Event] = []
        for event in events:
            if isinstance(event, Send):
                self._sent(event)
            elif isinstance(event, Assigned):
                self._assigned(event)
            elif isinstance(event, End):
                self._asked(event)
            else:
                later.append(event)  # answers may come from a diary that sorts before the question's
        for event in later:
            self._learn(event)

    def _sent(self, event: Send) -> None:
        message = Message(event.id, (event.topic, event.partition), event.at, event.transaction)
        self.messages[event.id] = message
        if event.transaction:
            self._transaction(event.transaction).messages.append(message)

    def _asked(self, event: End) -> None:
        transaction = self._transaction(event.transaction)
        if event.intent == "commit" and transaction.commit_asked_at is None:
            transaction.commit_asked_at = event.at

    def _transaction(self, name: str) -> Transaction:
        return self.transactions.setdefault(name, Transaction(name))

    def _assigned(self, event: Assigned) -> None:
        place = (event.topic, event.partition)
        start = event.offset if event.offset >= 0 else None
        self.sessions[event.session, place] = Session(event.session, place, "uncommitted", event.group, start)
        if event.group:
            self.starts.append(event)

    def _learn(self, event: Event) -> None:
        if isinstance(event, Sent):
            message = self.messages[event.id]
            message.outcome, message.offset, message.answered_at = event.outcome, event.offset, event.at
        elif isinstance(event, Ended):
            self._transaction(event.transaction).settle(event)
        elif isinstance(event, Polled):
            self._polled(event)
        elif isinstance(event, Drained):
            self.drains.append(event)
        elif isinstance(event, Committed):
            self.commits.append(event)
        elif isinstance(event, Finished):
            self.finished.append(event)

    def _polled(self, event: Polled) -> None:
        for topic, partition, offset, message_id in event.rows:
            key = (event.session, (topic, partition))
            session = self.sessions.get(key)
            if session is None:
                session = self.sessions[key] = Session(event.session, key[1], event.isolation, event.group)
            session.isolation = event.isolation
            session.records.append(Seen(offset, message_id, event.at))

    # -- what follows from it -----------------------------------------------------------------------------------------

    def fate_of(self, message: Message) -> Fate | None:
        """The fate of its transaction; None for a message outside of any."""
        return self.transactions[message.transaction].fate if message.transaction else None

    def is_promised(self, message: Message) -> bool:
        """Whether the message was acknowledged for good: alone, or with its whole transaction."""
        if message.transaction:
            return self.fate_of(message) is Fate.COMMITTED
        return message.outcome == "ok"

    @cached_property
    def witnesses(self) -> dict[Place, dict[int, dict[str, str]]]:
        """Place to offset to id to the first who said so: answers to producers, readers, drains, replicas."""
        found: dict[Place, dict[int, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
        for message in self.messages.values():
            if message.outcome == "ok" and message.offset >= 0:
                found[message.place][message.offset].setdefault(message.id, "the answer to its producer")
        for session in self.sessions.values():
            for seen in session.records:
                found[session.place][seen.offset].setdefault(seen.id, session.name)
        for drain in self.drains:
            who = f"replica {drain.replica}" if drain.replica else f"the final {drain.isolation} read"
            for offset, message_id in drain.rows:
                found[drain.topic, drain.partition][offset].setdefault(message_id, who)
        return found

    def final_reads(self, isolation: Isolation) -> dict[Place, Drained]:
        """The final reads from leaders."""
        return {
            (drain.topic, drain.partition): drain
            for drain in self.drains
            if drain.isolation == isolation and not drain.replica
        }
