"""What producers, partitions and coordinators say to each other about transactions, in our own words."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.machines.messages import ProducerIdentity, Request

Where = tuple[str, int]  # topic and partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Init(Request[ProducerIdentity]):
    """A producer starts: from the answer on, every other instance of it is fenced.

    One that goes on after an error says who it was (KIP-360), and is refused where somebody else started meanwhile.
    """

    timeout_ms: int
    fresh_producer_id: int  # no producer has it or ever had
    expected: ProducerIdentity | None = None


@dataclass(frozen=True, slots=True)
class AddToTransaction(Request[None]):
    """A producer is about to write to partitions; the first ones begin its transaction."""

    producer: ProducerIdentity
    partitions: frozenset[Where]


@dataclass(frozen=True, slots=True)
class Verify(Request[frozenset[Where]]):
    """Which of these partitions are not part of the producer's open transaction?"""

    producer: ProducerIdentity
    partitions: frozenset[Where]


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Request[ProducerIdentity]):
    """A producer commits or aborts. The answer is who it is in its next transaction: another one if it ``bumps``."""

    producer: ProducerIdentity
    is_commit: bool
    bumps: bool = False  # the producer speaks the second protocol, and takes a new epoch
    fresh_producer_id: int = -1  # needed where the epochs run out


@dataclass(frozen=True, slots=True)
class Terminate(Request[None]):
    """Whatever transaction is open is to be aborted, and its producer fenced."""
